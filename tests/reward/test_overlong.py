"""The overlong penalty by hand at its boundaries."""

from __future__ import annotations

import pytest

from verl_core.config.schema.reward import OverlongBufferConfig
from verl_core.reward.overlong import overlong_penalty, with_overlong_penalty
from verl_core.trajectory import Reward

CONFIG = OverlongBufferConfig(enable=True, len=4, penalty_factor=2.0)


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (15, 0.0), (16, 0.0), (17, -0.5), (18, -1.0), (19, -1.5), (20, -2.0)]
)
def test_of_twenty_tokens_the_last_four_are_the_buffer(length: int, penalty: float) -> None:
    assert overlong_penalty(length, 20, CONFIG) == penalty


def test_the_paper_and_a_buffer_as_long_as_the_response() -> None:
    paper = OverlongBufferConfig(enable=True, len=4096)  # L = 20480: 16384 expected tokens
    assert [overlong_penalty(n, 20480, paper) for n in (16384, 18432, 20480)] == [0.0, -0.5, -1.0]
    whole = OverlongBufferConfig(enable=True, len=20)
    assert [overlong_penalty(n, 20, whole) for n in (0, 1, 20)] == [0.0, -0.05, -1.0]


def test_the_score_before_and_the_penalty_travel_as_parts() -> None:
    rewards = [
        Reward("a", 1.0, {"format": 0.5}),
        Reward("b", 0.25, {"acc": True}),
        Reward("c", 0.0, {}, "raised", "boom"),
    ]
    shaped = with_overlong_penalty(rewards, [18, 2, 20], 20, CONFIG)
    assert [reward.score for reward in shaped] == [0.0, 0.25, 0.0]
    assert shaped[0].components == {"acc": 1.0, "format": 0.5, "overlong_reward": -1.0, "overlong": True}
    assert shaped[1].components == {"acc": True, "overlong_reward": 0.0, "overlong": False}
    assert shaped[2] is rewards[2]
    assert with_overlong_penalty(rewards, [18, 2, 20], 20, OverlongBufferConfig()) == rewards

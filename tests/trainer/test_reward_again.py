"""Scores that were kept while groups were sampled: what failed then is asked for again, before the error budget."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.trainer.test_stages import row
from verl_core.config.schema.reward import OverlongBufferConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import Sample
from verl_core.trainer.session import Session
from verl_core.trainer.stages.reward import reward
from verl_core.trajectory import Reward

ROWS = [row("a", session, 2) for session in range(3)]
KEPT = [
    Reward("a_0_0", 1.0),
    Reward("a_1_0", 0.0, status="raised", reason="the service was down"),
    Reward("a_2_0", 0.5),
]


def session_of(
    answers: dict[str, Reward], overlong: OverlongBufferConfig | None = None
) -> tuple[Session, list[str], list[Reward]]:
    """(a session whose rollout kept `KEPT`, keys that were asked for, rewards that were published)."""
    asked: list[str] = []
    published: list[Reward] = []

    def score_each(samples: Sequence[Sample]) -> list[Reward]:
        asked.extend(sample.key for sample in samples)
        return [answers[sample.key] for sample in samples]

    def save_rewards(step: int, rewards: list[Reward], metrics: dict[str, float]) -> None:
        published.extend(rewards)

    session: Any = SimpleNamespace(
        files=SimpleNamespace(
            trajectories=lambda step: ROWS, scored=lambda step: list(KEPT), save_rewards=save_rewards
        ),
        config=SimpleNamespace(
            algorithm=SimpleNamespace(filter_groups=SimpleNamespace(enable=True)),
            greedy_session=None,
            reward=SimpleNamespace(error_budget=0.0, overlong_buffer=overlong or OverlongBufferConfig()),
            data=SimpleNamespace(max_response_length=2),
        ),
        scorer=SimpleNamespace(score_each=score_each),
        tokenizer=SimpleNamespace(batch_decode=lambda ids: ["text"] * len(ids)),
        truth_of=lambda ordinal, validation: ("4", {}),
    )
    return cast(Session, session), asked, published


def test_after_the_function_was_mended_the_step_goes_on() -> None:
    session, asked, published = session_of({"a_1_0": Reward("a_1_0", 0.25)})
    reward(session, 1)
    assert asked == ["a_1_0"]
    assert [(one.key, one.score, one.status) for one in published] == [
        ("a_0_0", 1.0, "ok"),
        ("a_1_0", 0.25, "ok"),
        ("a_2_0", 0.5, "ok"),
    ]


def test_what_is_asked_again_loses_for_its_length_once_like_the_others() -> None:
    overlong = OverlongBufferConfig(enable=True, len=2, penalty_factor=0.5)  # of two tokens: each response loses it all
    session, _, published = session_of({"a_1_0": Reward("a_1_0", 0.25)}, overlong)
    reward(session, 1)
    assert [one.score for one in published] == [1.0, -0.25, 0.5]  # the kept ones were shaped when they were scored


def test_what_fails_again_is_over_the_budget() -> None:
    session, _, published = session_of({"a_1_0": KEPT[1]})
    with pytest.raises(RewardError, match="1 of 3 samples could not be scored"):
        reward(session, 1)
    assert published == []

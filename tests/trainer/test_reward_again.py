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
from verl_core.trainer.metrics import DROPPED_SAMPLES, DROPPED_UNSCORED, drop_metrics
from verl_core.trainer.session import Session
from verl_core.trainer.stages.reward import reward
from verl_core.trainer.stages.rollout import rollout
from verl_core.trajectory import Prompt, Reward
from verl_core.transfer.drops import Drops
from verl_core.transfer.flight import Group

ROWS = [row("a", session, 2) for session in range(3)]
KEPT = [
    Reward("a_0_0", 1.0),
    Reward("a_1_0", 0.0, status="raised", reason="the service was down"),
    Reward("a_2_0", 0.5),
]


def session_of(
    answers: dict[str, Reward], overlong: OverlongBufferConfig | None = None, dropped: tuple[int, int] = (0, 0)
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
            trajectories=lambda step: ROWS,
            scored=lambda step: list(KEPT),
            save_rewards=save_rewards,
            metrics=lambda step, stages: dict(zip((DROPPED_SAMPLES, DROPPED_UNSCORED), dropped, strict=True)),
        ),
        config=SimpleNamespace(
            algorithm=SimpleNamespace(filter_groups=SimpleNamespace(enable=True)),
            greedy_session=None,
            reward=SimpleNamespace(
                error_budget=0.1 if dropped[0] else 0.0, overlong_buffer=overlong or OverlongBufferConfig()
            ),
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


@pytest.mark.parametrize(("dropped", "is_over"), [((17, 1), False), ((16, 1), True), ((7, 0), False)])
def test_samples_of_groups_that_the_filter_dropped_are_of_the_step_too(dropped: tuple[int, int], is_over: bool) -> None:
    """One of three kept samples fails: with those of dropped groups 2 of 20, 2 of 19 and 1 of 10."""
    session, _, published = session_of({"a_1_0": KEPT[1]}, dropped=dropped)
    if is_over:
        with pytest.raises(RewardError, match="2 of 19 samples could not be scored"):
            reward(session, 1)
    else:
        reward(session, 1)
    assert len(published) == (0 if is_over else 3)


def test_failures_in_dropped_groups_end_the_rollout_before_anything_is_kept() -> None:
    """So that a process that takes over scores them again: once the step is rolled out they are gone."""
    drops = Drops()
    lost = [Reward("x_0_0", 0.0), Reward("x_1_0", 0.0), Reward("x_2_0", 0.0, status="raised", reason="boom")]
    drops.arrive(2)
    drops.drop(("constant: score is 0 in all 2 sessions",), 2, lost)
    told = drops.summary()
    assert (told.samples, told.unscored, told.example) == (3, 1, "x_2_0: boom")
    metrics = drop_metrics(told, kept=1, is_filtered=True)
    assert (metrics[DROPPED_SAMPLES], metrics[DROPPED_UNSCORED]) == (3.0, 1.0)
    assert drops.summary().samples == 0
    group = Group(cast(Prompt, None), ROWS, rewards=tuple(KEPT))
    config = SimpleNamespace(
        data=SimpleNamespace(train_batch_size=1),
        algorithm=SimpleNamespace(filter_groups=SimpleNamespace(enable=True)),
        reward=SimpleNamespace(error_budget=0.1),
    )
    buffer = SimpleNamespace(sample=lambda size, step, on_arrival: [group], drops=lambda: told)
    files = SimpleNamespace(spool=lambda step: SimpleNamespace(append=lambda groups: None))
    session: Any = SimpleNamespace(config=config, files=files, buffer=buffer, began=0.0, on_policy=False)
    with pytest.raises(RewardError, match=r"1 of 6 samples(.|\n)*for example x_2_0: boom"):
        rollout(session, 1)

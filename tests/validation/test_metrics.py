from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from verl_core.trajectory import Prompt, Reward, Segment, Trajectory
from verl_core.validation.metrics import validation_metrics


def prompt(uid: str, source: str, n: int) -> Prompt:
    ids = np.array([1], dtype=np.int32)
    return Prompt(uid, uid, 0, 0, 0, 0, n, ids, source, None)


def output(uid: str, session: int, source: str, index: int = 0, turns: int = 1) -> Trajectory:
    ids = np.array([1], dtype=np.int32)
    mask, log_probs = np.ones(1, dtype=np.bool_), np.zeros(1, dtype=np.float32)
    return Trajectory(uid, session, index, 0, ids, ids, mask, log_probs, (Segment(0, 1),), "stop", source, turns)


def scored(key: str, score: float, **components: Any) -> Reward:
    return Reward(key, score, components)


def test_two_prompts_by_hand() -> None:
    # a: 1, 0, 0, 1   b: 0, 0, 0, 1
    scores = {"a": [1, 0, 0, 1], "b": [0, 0, 0, 1]}
    rewards = {f"{uid}_{s}_0": scored(f"{uid}_{s}_0", v) for uid, row in scores.items() for s, v in enumerate(row)}
    rows = [output(uid, s, "sums") for uid in scores for s in range(4)]
    metrics = validation_metrics([prompt("a", "sums", 4), prompt("b", "sums", 4)], rows, rewards)
    assert metrics["val-core/sums/reward/mean@4"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["val-aux/sums/reward/std@4"] == pytest.approx((0.5 + (0.25 * 0.75) ** 0.5) / 2)
    # pairs without a 1: a 1 of 6, b 3 of 6
    assert metrics["val-aux/sums/reward/best@2/mean"] == pytest.approx((5 / 6 + 3 / 6) / 2)
    # pairs of only 1s: a 1 of 6, b none
    assert metrics["val-aux/sums/reward/worst@2/mean"] == pytest.approx((1 / 6 + 0) / 2)
    assert metrics["val-core/sums/reward/best@4/mean"] == 1.0
    assert metrics["val-aux/sums/reward/worst@4/mean"] == 0.0
    assert metrics["val-aux/sums/failed"] == metrics["val-aux/sums/quarantined"] == 0.0


def test_what_has_no_score_counts_as_zero_and_is_told_apart() -> None:
    rows = [output("a", 0, "sums"), output("a", 1, "sums")]  # session 2 never came back
    rewards = {"a_0_0": scored("a_0_0", 1.0, acc=True), "a_1_0": Reward("a_1_0", 0.0, {"acc": 1}, "timeout", "slow")}
    metrics = validation_metrics([prompt("a", "sums", 3), prompt("b", "sums", 3)], rows, rewards)  # b: nothing at all
    assert metrics["val-core/sums/reward/mean@3"] == pytest.approx(1 / 6)
    assert metrics["val-aux/sums/acc/mean@3"] == pytest.approx(1 / 6)  # a quarantined sample's parts do not count
    assert metrics["val-aux/sums/reward_scored_only/mean@3"] == 1.0
    assert (metrics["val-aux/sums/failed"], metrics["val-aux/sums/quarantined"]) == (4.0, 1.0)


def test_nothing_came_back() -> None:
    metrics = validation_metrics([prompt("a", "sums", 1)], [], {})
    assert metrics == {
        "val-core/sums/reward/mean@1": 0.0,
        "val-aux/sums/failed": 1.0,
        "val-aux/sums/quarantined": 0.0,
    }


def test_sources_are_kept_apart_and_order_does_not_matter() -> None:
    prompts = [prompt("a", "x", 1), prompt("b", "y", 1)]
    rows = [output("a", 0, "x"), output("b", 0, "y")]
    rewards = {"a_0_0": scored("a_0_0", 1.0), "b_0_0": scored("b_0_0", 0.25)}
    metrics = validation_metrics(prompts, rows, rewards)
    assert (metrics["val-core/x/reward/mean@1"], metrics["val-core/y/reward/mean@1"]) == (1.0, 0.25)
    assert metrics == validation_metrics(prompts[::-1], rows[::-1], rewards)


def test_the_last_output_of_a_session_counts() -> None:
    rows = [output("a", 0, "x", 1, turns=3), output("a", 0, "x", 0, turns=1)]
    rewards = {"a_0_0": scored("a_0_0", 0.0), "a_0_1": scored("a_0_1", 1.0)}
    metrics = validation_metrics([prompt("a", "x", 1)], rows, rewards)
    assert metrics["val-core/x/reward/mean@1"] == 1.0
    assert metrics["val-aux/num_turns/mean"] == 3.0


def test_words_among_the_components_are_left_out() -> None:
    rewards = {"a_0_0": scored("a_0_0", 1.0, answer="7")}
    metrics = validation_metrics([prompt("a", "x", 1)], [output("a", 0, "x")], rewards)
    assert not [name for name in metrics if "answer" in name]


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="a_0_0 of the validation was not scored"):
        validation_metrics([prompt("a", "x", 1)], [output("a", 0, "x")], {})
    with pytest.raises(ValueError, match="different numbers of sessions"):
        validation_metrics([prompt("a", "x", 1), prompt("b", "x", 2)], [], {})

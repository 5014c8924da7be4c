"""Composite rewards: the sum by hand, all parts told, one failing part fails the sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.schema.reward import RemoteRewardConfig, RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.budget import check_budget
from verl_core.reward.interface import Sample
from verl_core.reward.process import RewardProcess
from verl_core.reward.registry import check_sources, reward_for
from verl_core.reward.remote import RemoteRewards
from verl_core.reward.scorer import CompositeScorer
from verl_core.reward.scoring import score_sample
from verl_core.trainer.metrics import reward_metrics
from verl_core.trajectory import Reward

HERE = Path(__file__).parent
USER = f"{HERE / 'user_rewards.py'}:compute_score"
PARTS: list[dict[str, Any]] = [
    {"name": "right", "verifier": "row"},
    {"name": "length", "function": USER, "weight": -0.25},
    {"name": "word", "verifier": "reasoning_gym_lenient/chain_sum", "weight": 2},
]


def sample(solution: str) -> Sample:
    return Sample("k", "one_digit_sums", solution, "12", {})


def test_the_sum_by_hand_with_every_part() -> None:
    config = RewardConfig(composite=PARTS)
    check_sources(["one_digit_sums"], config)
    reward = score_sample(reward_for("one_digit_sums", config), sample("12"))
    assert reward.score == pytest.approx(1.0 - 0.25 * 2 + 2 * 1.0)
    parts = {name: reward.components[name] for name in ("right", "length", "word")}
    assert parts == {"right": 1.0, "length": 2.0, "word": 1.0}
    assert reward.components["word/answer"] == "12"
    assert reward.components["length/acc"] is True


def test_a_part_without_a_score_is_named_with_its_kind() -> None:
    function = reward_for("one_digit_sums", RewardConfig(composite=PARTS))
    for order, status, reason in (
        ("raise", "raised", "part 'length': ValueError: cannot score this"),
        ("nan", "not_finite", "part 'length': the score is nan"),
        ("text", "bad_type", "part 'length': the score is a str, not a number"),
    ):
        reward = score_sample(function, sample(order))
        assert (reward.status, reward.reason, reward.score) == (status, reason, 0.0)


def test_a_missing_function_or_verifier_is_told_before_training() -> None:
    for part in ({"name": "a", "function": f"{HERE / 'user_rewards.py'}:nothing"}, {"name": "a", "verifier": "gsm9k"}):
        with pytest.raises(RewardError, match=r"nothing|gsm9k"):
            check_sources(["one_digit_sums"], RewardConfig(composite=[part]))


def test_parts_run_in_the_killable_process() -> None:
    process = RewardProcess(RewardConfig(composite=PARTS, timeout_s=2.0))
    try:
        rewards = process.score([sample("12"), sample("hang"), sample("7")])
    finally:
        process.stop()
    assert [reward.status for reward in rewards] == ["ok", "timeout", "ok"]
    assert rewards[2].score == pytest.approx(0.0 - 0.25 * 1 + 2 * 0.0)


class Near:
    """Local parts: 2 right answers of weight 1 each have been summed."""

    def __init__(self, rewards: Sequence[Reward], budget: float = 1.0) -> None:
        self.rewards, self.budget, self.is_open = list(rewards), budget, True

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        return self.rewards

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        check_budget(self.rewards, self.budget)
        return self.rewards

    def shutdown(self) -> None:
        self.is_open = False


class Far(RemoteRewards):
    """Answers without asking, and keeps how many failures the caller bears."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = list(rewards)
        self.told: list[int | None] = []

    def score_each(self, samples: Sequence[Sample], most_failures: int | None = None) -> list[Reward]:
        self.told.append(most_failures)
        return self.rewards


def test_local_and_remote_parts_make_one_reward_and_one_budget() -> None:
    config = RewardConfig(
        composite=[{"name": "right", "verifier": "row"}, {"name": "judge", "remote": True, "weight": 0.5}],
        remote=RemoteRewardConfig(url="http://service"),
        error_budget=0.5,
    )
    failed = Reward("c", 0.0, {}, "timeout", "slow")
    near = Near([Reward("a", 1.0, {"right": 1.0}), failed, Reward("c", 0.0, {"right": 0.0}), Reward("d", 0.0, {})])
    far = Far([Reward("a", 0.5, {"why": "fine"}), Reward("b", 1.0), failed, Reward("d", 1.0)])
    scorer = CompositeScorer(config, near, far)
    rewards = scorer.score([sample("")] * 4)
    assert rewards[0] == Reward("a", 1.25, {"right": 1.0, "judge": 0.5, "judge/why": "fine"})
    assert rewards[1] is failed
    assert (rewards[2].status, rewards[2].reason) == ("timeout", "part 'judge': slow")
    assert rewards[3].score == 0.5
    config.error_budget = 0.4
    with pytest.raises(RewardError, match="2 of 4 samples could not be scored"):
        scorer.score([sample("")] * 4)
    scorer.shutdown()
    assert not near.is_open


def test_once_the_budget_is_gone_the_service_is_not_asked() -> None:
    config = RewardConfig(
        composite=[{"name": "right", "verifier": "row"}, {"name": "judge", "remote": True}],
        remote=RemoteRewardConfig(url="http://service"),
        error_budget=0.3,
    )
    good, failed = Reward("a", 1.0, {"right": 1.0}), Reward("b", 0.0, {}, "raised", "no verifier")
    far = Far([Reward("a", 0.5)] * 10)
    with pytest.raises(RewardError, match=r"(?s)4 of 10 samples.*no verifier"):
        CompositeScorer(config, Near([good] * 6 + [failed] * 4, 0.3), far).score([sample("")] * 10)
    assert far.told == []
    found = CompositeScorer(config, Near([good] * 7 + [failed] * 3, 0.3), far).score([sample("")] * 10)
    assert [reward.score for reward in found] == [1.5] * 7 + [0.0] * 3
    assert far.told == [3]  # of ten samples three may fail
    CompositeScorer(config, Near([failed] * 10, 0.3), far).score_each([sample("")] * 10)
    assert far.told == [3, None]  # a part of a step's samples is not judged by itself


def test_parts_are_reported_as_means_over_the_rows_that_have_them() -> None:
    rewards = [
        Reward("a", 1.0, {"right": 1.0, "why": "x", "acc": True}),
        Reward("b", 0.0, {"right": 0.5, "acc": False}),
        Reward("c", 0.0, {"right": 9.0}, "raised", "boom"),
    ]
    metrics = reward_metrics(rewards)
    assert {name: value for name, value in metrics.items() if name.startswith("reward/")} == {
        "reward/right/mean": 0.75,
        "reward/acc/mean": 0.5,
        "reward/quarantined": 1.0,
    }

from __future__ import annotations

import pytest

from verl_core.errors import RewardError
from verl_core.reward.budget import Beside, check_budget
from verl_core.reward.scoring import quarantined
from verl_core.trajectory import Reward


def test_exactly_the_budget_passes_and_one_more_does_not() -> None:
    good = [Reward(f"g{i}", 1.0) for i in range(9)]
    bad = quarantined("b", "raised", "no")
    check_budget([*good, bad], 0.1)  # 1 of 10
    with pytest.raises(RewardError, match="2 of 11 samples"):
        check_budget([*good, bad, bad], 0.1)  # 0.18


def test_the_message_counts_each_kind_and_shows_one_of_each() -> None:
    rewards = [
        quarantined("a_0_0", "timeout", "no score within 3 s (reward.reward_model.timeout_s)"),
        quarantined("b_0_0", "raised", "ValueError: first"),
        quarantined("c_0_0", "raised", "ValueError: second"),
        Reward("d_0_0", 1.0),
    ]
    with pytest.raises(RewardError) as caught:
        check_budget(rewards, 0.5)
    text = str(caught.value)
    assert "3 of 4 samples could not be scored" in text
    assert "reward.error_budget allows 50%" in text
    assert "raised: 2, for example b_0_0: ValueError: first" in text
    assert (
        "timeout: 1, for example a_0_0: no score within 3 s (reward.reward_model.timeout_s) (raise that limit," in text
    )
    assert "reward.timeout_s" not in text  # that is the limit of something else


def test_no_samples_and_a_budget_of_all() -> None:
    check_budget([], 0.0)
    check_budget([quarantined("a", "raised", "no")], 1.0)


def test_samples_of_dropped_groups_count_too() -> None:
    rewards = [*(Reward(f"g{i}", 1.0) for i in range(7)), quarantined("b", "raised", "no")]
    check_budget(rewards, 0.1, Beside(12, 1))  # 2 of 20
    check_budget([*rewards, quarantined("c", "raised", "no")], 0.1, Beside(21))  # 2 of 30, where 2 of 9 were kept
    with pytest.raises(RewardError) as caught:
        check_budget(rewards, 0.1, Beside(12, 2, "x_0_0: slow"))
    text = str(caught.value)
    assert "3 of 20 samples could not be scored" in text
    assert "raised: 1, for example b: no" in text
    assert "2 in groups that algorithm.filter_groups dropped, for example x_0_0: slow" in text

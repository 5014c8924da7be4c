"""Hand numbers: one small case per estimator, and the cases where a definition is a choice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs

NAN = math.nan
D = 1 + 1e-6
OUTCOMES = [1.0, 0.0, 2.0, 3.0]  # group 0: 1, 0, 2 (mean 1, unbiased deviation 1); group 1: 3, alone
GROUPS = [0, 0, 0, 1]


def rows(outcomes: list[float], groups: list[int], **fields: Any) -> AdvantageInputs:
    """One token per row."""
    mask = torch.ones(len(outcomes), 1).bool()
    return AdvantageInputs(torch.tensor(outcomes)[:, None], mask, torch.tensor(groups), **fields)


def advantages(name: str, given: AdvantageInputs) -> list[float]:
    return [round(value, 5) for value in ADVANTAGES.get(name)(given).advantages[:, 0].tolist()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [0, -1, 1, 3]),
        ("grpo_passk", [0, 0, 1, 3]),  # best 2, second 1, deviation 1; alone: 3 - 0
        ("rloo", [0, -1.5, 1.5, 3]),  # 1 - (0+2)/2, 0 - (1+2)/2, 2 - (1+0)/2
        ("opo", [0, -1, 1, 3]),  # equal lengths
        ("maxrl", [0, -1, 1, 0]),
        ("gpg", [0, -4 / 3, 4 / 3, 4]),  # alpha = 4 rows / 3 with a reward
    ],
)
def test_outcome_estimators(name: str, expected: list[float]) -> None:
    assert advantages(name, rows(OUTCOMES, GROUPS)) == pytest.approx(expected, abs=2e-5)


def test_reinforce_plus_plus_baseline() -> None:
    # 0, -1, 1, 3: mean 0.75, squares .5625 + 3.0625 + .0625 + 5.0625 = 8.75, / 3
    std = math.sqrt(8.75 / 3)
    expected = [-0.75 / std, -1.75 / std, 0.25 / std, 2.25 / std]
    assert advantages("reinforce_plus_plus_baseline", rows(OUTCOMES, GROUPS)) == pytest.approx(expected, abs=1e-5)


def test_opo_weighs_with_lengths() -> None:
    # Lengths 1 and 3, outcomes 1 and 0: baseline 1/4.
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    given = AdvantageInputs(torch.tensor([[1.0, NAN, NAN], [0, 0, 0]]), mask, torch.tensor([0, 0]))
    assert advantages("opo", given) == [0.75, -0.25]


def test_passk_gives_nothing_to_a_tie_and_reads_its_switch() -> None:
    assert advantages("grpo_passk", rows([2.0, 2.0, 0.0], [0, 0, 0])) == [0, 0, 0]
    assert advantages("grpo_passk", rows([5.0, 2.0, 0.0], [0, 0, 0], norm_by_std=False)) == [3, 0, 0]


def test_maxrl_gives_nothing_where_nothing_succeeded() -> None:
    assert advantages("maxrl", rows([0.0, 0.0, 1.0, 0.0], [0, 0, 1, 1])) == [0, 0, 1, -1]  # (1 - .5) / .5


def test_gdpo_by_hand() -> None:
    # Part 0: 1, 0 -> +-sqrt(1/2); part 1: 0, 10 -> -+sqrt(1/2), weight 0.5. Sum +-0.5 sqrt(1/2), whitened +-sqrt(1/2).
    given = rows([NAN, NAN], [0, 0], reward_parts=torch.tensor([[1.0, 0.0], [0.0, 10.0]]), part_weights=(1.0, 0.5))
    assert advantages("gdpo", given) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], abs=1e-4)


def test_returns_step_over_tool_text() -> None:
    # Own tokens at 0, 2, 3; rewards 1, 2, 4; gamma 1/2. G: 4; 2 + 4/2 = 4; 1 + 4/2 = 3.
    own = torch.tensor([[1, 0, 1, 1]]).bool()
    given = AdvantageInputs(torch.tensor([[1.0, NAN, 2.0, 4.0]]), own, torch.tensor([0]), gamma=0.5)
    assert ADVANTAGES.get("reinforce_plus_plus")(given).returns[own].tolist() == [3, 4, 4]


def test_gae_by_hand_over_tool_text() -> None:
    # Values 1, -, 2, 0; gamma 1, lambda 1/2. d3 = 4 - 0 = 4; d2 = 2 + 0 - 2 = 0; d0 = 1 + 2 - 1 = 2.
    # A3 = 4; A2 = 0 + 2 = 2; A0 = 2 + 1 = 3. Returns A + V: 4, 4, 4.
    own = torch.tensor([[1, 0, 1, 1]]).bool()
    given = AdvantageInputs(
        torch.tensor([[1.0, NAN, 2.0, 4.0]]), own, torch.tensor([0]), lam=0.5, values=torch.tensor([[1.0, NAN, 2, 0]])
    )
    got = ADVANTAGES.get("gae")(given)
    assert got.returns[own].tolist() == [4, 4, 4]
    assert got.advantages[0].tolist() == pytest.approx([0, 0, -1, 1], abs=1e-6)  # 3, 2, 4: mean 3, deviation 1


def test_an_episode_goes_on_in_the_next_output() -> None:
    # Output 0 has tokens a, b, output 1 has c with reward 8; gamma 1/2: G = 2, 4, 8. Rows given in reverse.
    mask = torch.tensor([[1, 0], [1, 1]]).bool()
    given = AdvantageInputs(
        torch.tensor([[8.0, NAN], [0.0, 0.0]]),
        mask,
        torch.tensor([0, 0]),
        session_index=torch.tensor([0, 0]),
        output_index=torch.tensor([1, 0]),
        gamma=0.5,
        lam=1.0,
        values=torch.tensor([[1.0, NAN], [3.0, 5.0]]),
    )
    assert ADVANTAGES.get("reinforce_plus_plus")(given).returns.tolist() == [[8, 0], [2, 4]]
    # gae, lambda 1: returns are the discounted sums too, whatever the values.
    assert ADVANTAGES.get("gae")(given).returns.tolist() == [[8, 0], [2, 4]]


def test_remax_by_hand() -> None:
    given = AdvantageInputs(
        torch.tensor([[1.0, 2.0]]), torch.ones(1, 2).bool(), torch.tensor([0]), greedy_rewards=torch.tensor([0.5])
    )
    assert ADVANTAGES.get("remax")(given).advantages.tolist() == [[2.5, 1.5]]


def test_token_baseline_by_hand() -> None:
    # Chances 1/2 of two equal tokens: w = 1 - 1 + 1/2 = 1/2 everywhere. Rows of 2 and 1 tokens, outcomes 4 and 1.
    # t = 0: W = 1/2, 1/2: B = (4 + 1) / 2. t = 1: only row 0 still runs: B = 0.
    half = torch.full((2, 2), math.log(0.5))
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    given = AdvantageInputs(
        torch.tensor([[0.0, 4.0], [1.0, NAN]]),
        mask,
        torch.tensor([0, 0]),
        old_log_probs=half,
        sum_pi_squared=torch.full((2, 2), 0.5),
    )
    got = ADVANTAGES.get("optimal_token_baseline")(given).advantages
    torch.testing.assert_close(got, torch.tensor([[1.5, 4.0], [-1.5, 0.0]]))
    # Three times the weight on row 1 (rho^2 = 3): B = (4 + 3) / 4 = 1.75.
    weighted = AdvantageInputs(
        **{name: getattr(given, name) for name in ("token_rewards", "mask", "group_index")},
        old_log_probs=half,
        sum_pi_squared=torch.full((2, 2), 0.5),
        is_weights=torch.tensor([[1.0, 1.0], [math.sqrt(3), NAN]]),
    )
    got = ADVANTAGES.get("tir_optimal_token_baseline")(weighted).advantages
    torch.testing.assert_close(got, torch.tensor([[2.25, 4.0], [-0.75, 0.0]]))


def test_tool_text_takes_time_only_in_the_plain_token_baseline() -> None:
    # Row 0: token, tool, token. Row 1: token, token. With tools, row 0's second token is at position 2, alone: B = 0.
    # Without, it is compared with row 1's second: W = 1, 1: B = (4 + 2) / 2 = 3.
    own = torch.tensor([[1, 0, 1], [1, 1, 0]]).bool()
    given = AdvantageInputs(
        torch.tensor([[0.0, NAN, 4.0], [0.0, 2.0, NAN]]),
        own,
        torch.tensor([0, 0]),
        old_log_probs=torch.full((2, 3), math.log(0.5)),
        sum_pi_squared=torch.full((2, 3), 0.5),
    )
    assert ADVANTAGES.get("optimal_token_baseline")(given).advantages[0, 2].item() == 4.0
    assert ADVANTAGES.get("tir_optimal_token_baseline")(given).advantages[0, 2].item() == pytest.approx(1.0)


@pytest.mark.parametrize("score", [0.1, 33.3, -100.1, 1000.7])
@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_equal_scores_give_no_advantage_however_large_they_are(name: str, score: float) -> None:
    lengths = torch.randint(100, 1024, (64, 1), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(1023) < lengths
    rewards = torch.zeros(64, 1023)
    rewards[torch.arange(64), lengths[:, 0] - 1] = score
    found = ADVANTAGES.get(name)(AdvantageInputs(rewards, mask, torch.arange(64) // 4)).advantages
    assert float(found.abs().max()) < 1e-6


def test_an_empty_batch_is_refused() -> None:
    for shape in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="empty batch"):
            AdvantageInputs(torch.zeros(shape), torch.zeros(shape).bool(), torch.zeros(shape[0], dtype=torch.int64))


@pytest.mark.parametrize(("baseline_rows", "expected"), [("kept", [0.5, -0.5, 0.0]), ("all", [-1.0, -2.0, 0.0])])
def test_rejected_rows_leave_the_baseline_or_stay_in_it(baseline_rows: Any, expected: list[float]) -> None:
    # Outcomes 1, 0 and a rejected 5: mean 0.5 without it, 2 with it.
    own, kept = torch.ones(3, 1).bool(), torch.tensor([[1], [1], [0]]).bool()
    rewards = torch.tensor([[1.0], [0.0], [5.0]])
    given = AdvantageInputs(
        rewards, kept, torch.zeros(3, dtype=torch.int64), norm_by_std=False, sampled=own, baseline_rows=baseline_rows
    )
    assert advantages("grpo", given) == expected


def test_the_reward_of_a_rejected_token_still_counts_for_its_row() -> None:
    # The score sits on the last token, and that token was rejected.
    own = torch.ones(2, 2).bool()
    kept = torch.tensor([[1, 0], [1, 1]]).bool()
    given = AdvantageInputs(
        torch.tensor([[0.0, 1.0], [0.0, 0.0]]), kept, torch.tensor([0, 0]), norm_by_std=False, sampled=own
    )
    assert ADVANTAGES.get("grpo")(given).advantages.tolist() == [[0.5, 0.0], [-0.5, -0.5]]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("gae", "values"),
        ("remax", "greedy_rewards"),
        ("gdpo", "reward_parts"),
        ("optimal_token_baseline", "old_log_probs"),
    ],
)
def test_missing_inputs_are_named(name: str, missing: str) -> None:
    with pytest.raises(ValueError, match=f"needs {missing}"):
        ADVANTAGES.get(name)(rows(OUTCOMES, GROUPS))


def test_contradictory_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="values must be"):
        rows(OUTCOMES, GROUPS, values=torch.zeros(3, 1))
    with pytest.raises(ValueError, match="given together"):
        rows(OUTCOMES, GROUPS, session_index=torch.arange(4))
    with pytest.raises(ValueError, match="mask has cells that sampled lacks"):
        rows(OUTCOMES, GROUPS, sampled=torch.zeros(4, 1).bool())
    with pytest.raises(ValueError, match="reward_parts must be"):
        rows(OUTCOMES, GROUPS, reward_parts=torch.zeros(3, 2))

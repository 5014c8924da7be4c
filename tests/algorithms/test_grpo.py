"""GRPO against hand numbers, a slow literal loop, and invariances."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs

NAN = float("nan")
grpo = ADVANTAGES.get("grpo")


def inputs(rows: list[list[float]], mask: list[list[int]], groups: list[int], norm: bool = True) -> AdvantageInputs:
    return AdvantageInputs(torch.tensor(rows), torch.tensor(mask).bool(), torch.tensor(groups), norm)


def test_hand_numbers() -> None:
    # Group 0: outcomes 1, 0, 2: mean 1, unbiased deviation 1. Group 1 has one row: mean 0, deviation 1.
    given_ = inputs([[0, 1], [0, 0], [2, 0], [3, 0]], [[1, 1], [1, 1], [1, 0], [1, 1]], [0, 0, 0, 1])
    d = 1 + 1e-6
    expected = torch.tensor([[0.0, 0.0], [-1 / d, -1 / d], [1 / d, 0.0], [3 / d, 3 / d]])
    torch.testing.assert_close(grpo(given_).advantages, expected)


def test_without_the_deviation_it_is_dr_grpo() -> None:
    # mean of 1, 0, 5 is 2; a lone row keeps its reward.
    given_ = inputs([[1.0], [0.0], [5.0], [3.0]], [[1]] * 4, [0, 0, 0, 1], norm=False)
    torch.testing.assert_close(grpo(given_).advantages, torch.tensor([[-1.0], [-2.0], [3.0], [3.0]]))


def test_equal_rewards_give_zero_and_not_amplified_rounding() -> None:
    # 0.1 is not a binary fraction: in float32 the mean of 7 of them is off by 7e-9, and / (7e-9 + 1e-6) would be 0.007.
    given_ = inputs([[0.1]] * 7, [[1]] * 7, [0] * 7)
    assert grpo(given_).advantages.abs().max() < 1e-9


def test_a_rejected_row_takes_no_part_in_its_group() -> None:
    with_rejected = inputs([[1.0], [3.0], [1e6]], [[1], [1], [0]], [0, 0, 0])
    without = inputs([[1.0], [3.0]], [[1], [1]], [0, 0])
    torch.testing.assert_close(grpo(with_rejected).advantages[:2], grpo(without).advantages)
    assert grpo(with_rejected).advantages[2].item() == 0.0


def test_when_all_siblings_are_rejected_the_last_row_is_a_singleton() -> None:
    given_ = inputs([[0.5], [9.0]], [[1], [0]], [0, 0])
    assert grpo(given_).advantages[0].item() == pytest.approx(0.5 / (1 + 1e-6))


def test_a_fully_rejected_batch_is_all_zero() -> None:
    assert torch.equal(grpo(inputs([[NAN], [NAN]], [[0], [0]], [0, 0])).advantages, torch.zeros(2, 1))


def test_masked_cells_may_hold_nan() -> None:
    clean = inputs([[1.0, 0.0], [0.0, 2.0]], [[1, 0], [0, 1]], [0, 0])
    poisoned = inputs([[1.0, NAN], [NAN, 2.0]], [[1, 0], [0, 1]], [0, 0])
    assert torch.equal(grpo(clean).advantages, grpo(poisoned).advantages)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes disagree"):
        inputs([[1.0]], [[1]], [0, 0])


@st.composite
def batches(draw: st.DrawFn) -> AdvantageInputs:
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    number = st.floats(-4, 4, width=32)
    values = draw(st.lists(st.lists(number, min_size=width, max_size=width), min_size=rows, max_size=rows))
    mask = draw(st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=rows, max_size=rows))
    groups = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    return inputs(values, mask, groups, draw(st.booleans()))


def slow(given_: AdvantageInputs) -> list[list[float]]:
    """The paper's formula, one group at a time, with the standard library's statistics."""
    rewards, mask, groups = given_.token_rewards.tolist(), given_.mask.tolist(), given_.group_index.tolist()
    out = [[0.0] * len(row) for row in mask]
    for group in set(groups):
        live = [row for row, number in enumerate(groups) if number == group and any(mask[row])]
        total = {row: sum(value for value, keep in zip(rewards[row], mask[row], strict=True) if keep) for row in live}
        mean, std = 0.0, 1.0
        if len(live) > 1:
            mean, std = statistics.fmean(total.values()), statistics.stdev(total.values())
        for row in live:
            advantage = (total[row] - mean) / (std + 1e-6 if given_.norm_by_std else 1.0)
            out[row] = [advantage if keep else 0.0 for keep in mask[row]]
    return out


@given(batches())
def test_vectorised_equals_the_slow_loop(given_: AdvantageInputs) -> None:
    expected = torch.tensor(slow(given_))
    torch.testing.assert_close(grpo(given_).advantages, expected, rtol=2e-5, atol=2e-5)


@given(batches(), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(given_: AdvantageInputs, random: object) -> None:
    order = list(range(len(given_.group_index)))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = AdvantageInputs(
        given_.token_rewards[order], given_.mask[order], given_.group_index[order], given_.norm_by_std
    )
    torch.testing.assert_close(grpo(moved).advantages, grpo(given_).advantages[order], rtol=1e-5, atol=1e-6)


@given(batches(), st.integers(1, 4))
def test_more_padding_changes_nothing(given_: AdvantageInputs, extra: int) -> None:
    rows = given_.mask.shape[0]
    wide = AdvantageInputs(
        torch.cat([given_.token_rewards, torch.full((rows, extra), NAN)], dim=1),
        torch.cat([given_.mask, torch.zeros(rows, extra, dtype=torch.bool)], dim=1),
        given_.group_index,
        given_.norm_by_std,
    )
    width = given_.mask.shape[1]
    torch.testing.assert_close(grpo(wide).advantages[:, :width], grpo(given_).advantages, rtol=1e-6, atol=1e-7)
    assert torch.equal(grpo(wide).advantages[:, width:], torch.zeros(rows, extra))

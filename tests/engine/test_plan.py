"""Plans are partitions within their budgets, for any lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.engine.plan import micro_batches, mini_batches, rank_plans, share_over_ranks

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 80), st.randoms(use_true_random=False))
def test_micro_batches_partition_the_rows_within_the_budget(lengths: list[int], budget: int, random: object) -> None:
    array = np.asarray(lengths)
    rows = [row for row in range(len(lengths)) if row % 3 != 1] or [0]
    plan = micro_batches(rows, array, budget)
    assert sorted(row for batch in plan for row in batch) == sorted(rows)
    for batch in plan:
        padded = len(batch) * max(lengths[row] for row in batch)
        assert padded <= budget or len(batch) == 1
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert micro_batches(shuffled, array, budget) == plan


def test_a_row_over_the_budget_goes_alone_and_equals_go_together() -> None:
    # Longest first: 50 alone; 10 + 9 pad to 20; 2 + 2 + 2 pad to 6.
    assert micro_batches([0, 1, 2, 3, 4, 5], np.asarray([2, 9, 50, 10, 2, 2]), 20) == [[2], [3, 1], [0, 4, 5]]


@given(LENGTHS, st.integers(1, 5))
def test_ranks_share_all_rows_and_differ_by_at_most_the_longest(lengths: list[int], world: int) -> None:
    shares = share_over_ranks(list(range(len(lengths))), np.asarray(lengths), world)
    assert sorted(row for share in shares for row in share) == list(range(len(lengths)))
    loads = [sum(lengths[row] for row in share) for share in shares]
    # The list-scheduling bound: when a rank got its last row it had the least load.
    assert max(loads) - min(loads) <= max(lengths)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 60))
def test_all_ranks_have_equally_many_micro_batches(lengths: list[int], world: int, budget: int) -> None:
    plans = rank_plans(list(range(len(lengths))), np.asarray(lengths), world, budget)
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(row for plan in plans for batch in plan for row in batch) == list(range(len(lengths)))


GROUPS = st.lists(st.integers(0, 6), min_size=1, max_size=30)


@given(GROUPS, st.integers(1, 4), st.one_of(st.none(), st.integers(0, 99)), st.data())
def test_mini_batches_hold_whole_groups_once(
    groups: list[int], size: int, seed: int | None, data: st.DataObject
) -> None:
    group_index = np.asarray(groups)
    live = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))))
    plan = mini_batches(group_index, live, size, None if seed is None else (1, seed, 0))
    assert sorted(row for rows in plan for row in rows) == np.flatnonzero(live).tolist()
    where: dict[int, set[int]] = {}
    for number, rows in enumerate(plan):
        for row in rows:
            where.setdefault(groups[row], set()).add(number)
    assert all(len(numbers) == 1 for numbers in where.values())
    assert len(plan) == -(-len(set(groups)) // size)
    assert all(len({groups[row] for row in rows}) <= size for rows in plan)


def test_order_comes_from_the_seed_only() -> None:
    index, live = np.arange(16), np.ones(16, dtype=bool)
    first, again = mini_batches(index, live, 4, (1, 7, 0)), mini_batches(index, live, 4, (1, 7, 0))
    assert first == again
    assert first != mini_batches(index, live, 4, (1, 8, 0))
    words = np.random.PCG64(np.random.SeedSequence([1, 7, 0])).random_raw(16).tolist()
    order = [words.index(word) for word in sorted(words)]  # numpy keeps these words, not what `permutation` gives
    assert first == [sorted(order[at : at + 4]) for at in (0, 4, 8, 12)]
    assert mini_batches(index, live, 4, None) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize(("groups", "sizes"), [(9, [3, 3, 3]), (8, [4, 4]), (5, [3, 2])])
def test_dropped_groups_leave_no_lone_group(groups: int, sizes: list[int]) -> None:
    plan = mini_batches(np.arange(groups), np.ones(groups, dtype=bool), 4, None)
    assert [len(rows) for rows in plan] == sizes

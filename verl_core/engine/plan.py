"""Who computes what: mini-batches, ranks, micro-batches. Pure functions of lengths, so every rank knows the plan of
all.

Invariant: a plan is a partition: every row that can be trained on is in exactly one micro-batch of one rank per epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from verl_core.data.order import epoch_order

Rows = list[int]


def mini_batches(
    group_index: NDArray[np.int64], live: NDArray[np.bool_], groups_each: int, order_seed: Sequence[int] | None
) -> list[Rows]:
    """Rows of each optimizer step: whole groups, `groups_each` of them.

    When groups were dropped on the way, the rest is spread evenly over the same kind of count, so that no step is
    left with one lone group.

    Args:
        group_index: int64 [B].
        live: bool [B]; rows without a trainable token are left out (a mini-batch may end up empty).
        groups_each: `ppo_mini_batch_size`.
        order_seed: shuffles the groups when given, its last number being the epoch; None keeps their order.
    """
    groups = np.unique(group_index)
    if order_seed is not None:
        groups = groups[epoch_order(len(groups), order_seed[:-1], order_seed[-1])]
    pieces = np.array_split(groups, -(-len(groups) // groups_each))
    return [np.flatnonzero(np.isin(group_index, piece) & live).tolist() for piece in pieces]


def share_over_ranks(rows: Rows, lengths: NDArray[np.int64], world: int) -> list[Rows]:
    """Rows of each rank, balanced by tokens: the longest row first, each to the rank with least so far.

    Args:
        lengths: int64 [B], of all rows of the batch.
    """
    shares: list[Rows] = [[] for _ in range(world)]
    loads = [0] * world
    for row in sorted(rows, key=lambda row: (-int(lengths[row]), row)):
        rank = min(range(world), key=lambda rank: (loads[rank], len(shares[rank]), rank))
        shares[rank].append(row)
        loads[rank] += int(lengths[row])
    return [sorted(share) for share in shares]


def micro_batches(rows: Rows, lengths: NDArray[np.int64], budget: int) -> list[Rows]:
    """Rows of each micro-batch: rows x longest <= budget, padding included. A row over the budget goes alone.

    Rows are taken in order of length, longest first, so that rows padded together are alike.
    """
    batches: list[Rows] = []
    longest = 0
    for row in sorted(rows, key=lambda row: (-int(lengths[row]), row)):
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = int(lengths[row])
        batches[-1].append(row)
    return batches


def rank_plans(rows: Rows, lengths: NDArray[np.int64], world: int, budget: int) -> list[list[Rows]]:
    """Micro-batches of every rank, all ranks with equally many: short ones are filled up with empty micro-batches,
    because every forward and backward pass is a collective."""
    plans = [micro_batches(share, lengths, budget) for share in share_over_ranks(rows, lengths, world)]
    count = max(len(plan) for plan in plans)
    return [plan + [[] for _ in range(count - len(plan))] for plan in plans]

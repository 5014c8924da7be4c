"""Statistics per group. Invariant: only live entries count, and cost is linear in entries (no loop over groups)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


def group_total(values: torch.Tensor, live: torch.Tensor, group_index: torch.Tensor) -> torch.Tensor:
    """float64 [N]: for every entry, the sum of its group's live values.

    Args:
        values: float64 [N].
        live: bool [N]; other entries are left out.
        group_index: int64 [N], 0..G-1.
    """
    groups = int(group_index.max()) + 1 if group_index.numel() else 0
    zeros = torch.zeros(groups, dtype=torch.float64, device=values.device)
    return zeros.index_add(0, group_index, torch.where(live, values, 0.0))[group_index]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per entry, the statistics of its group over live entries; all float64 [N]. Entries of a group without live ones
    read 0.

    Attributes:
        count: live entries of the group.
        mean: mean value.
        std: unbiased standard deviation; 0 where count < 2.
    """

    count: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor

    @property
    def baseline(self) -> torch.Tensor:
        """float64 [N]: the mean, 0 where an entry has no sibling to compare with."""
        return torch.where(self.count < 2, 0.0, self.mean)

    @property
    def scale(self) -> torch.Tensor:
        """float64 [N]: the deviation, 1 where an entry has no sibling to compare with."""
        return torch.where(self.count < 2, 1.0, self.std)


def group_statistics(values: torch.Tensor, live: torch.Tensor, group_index: torch.Tensor) -> GroupStatistics:
    """Count, mean and standard deviation of `values` within groups; arguments as of `group_total`.

    Float64 and two passes: a group of equal rewards has a deviation of about 1e-17, so that dividing by it plus 1e-6
    gives 0 and not amplified rounding.
    """
    count = group_total(torch.ones_like(values), live, group_index)
    mean = group_total(values, live, group_index) / count.clamp(min=1)
    variance = group_total((values - mean) ** 2, live, group_index) / (count - 1).clamp(min=1)
    return GroupStatistics(count=count, mean=mean, std=variance.sqrt())


@dataclass(frozen=True, slots=True)
class TopTwo:
    """Per entry, the two largest live values of its group.

    Attributes:
        best, second: float64 [N]; `second` is 0 in a group with fewer than two live entries, `best` in one without.
        leads: bool [N]: the entry is the only one that holds `best`.
    """

    best: torch.Tensor
    second: torch.Tensor
    leads: torch.Tensor


def top_two(values: torch.Tensor, live: torch.Tensor, group_index: torch.Tensor) -> TopTwo:
    """The two largest values of every group; with a tie at the top both are equal. Arguments as of `group_total`."""
    best = _group_max(values, live, group_index)
    holds = live & (values == best)
    tied = group_total(torch.ones_like(values), holds, group_index) > 1
    runner_up = _group_max(values, live & ~holds, group_index)
    second = torch.where(tied, best, runner_up)
    return TopTwo(_finite(best), _finite(second), holds & ~tied)


def _group_max(values: torch.Tensor, live: torch.Tensor, group_index: torch.Tensor) -> torch.Tensor:
    groups = int(group_index.max()) + 1 if group_index.numel() else 0
    lowest = torch.full((groups,), -math.inf, dtype=torch.float64, device=values.device)
    shown = torch.where(live, values, -math.inf)
    return lowest.scatter_reduce(0, group_index, shown, reduce="amax")[group_index]


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values == -math.inf, 0.0, values)

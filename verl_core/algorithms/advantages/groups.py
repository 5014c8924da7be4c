"""Statistics per group. Invariant: only live rows count, and cost is linear in rows (no loop over groups)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Per row, the statistics of its group over live rows; all float64 [B]. Rows of a group without live rows read 0.

    Attributes:
        count: live rows of the group.
        mean: mean outcome.
        std: unbiased standard deviation; 0 where count < 2.
    """

    count: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor


def group_statistics(values: torch.Tensor, live: torch.Tensor, group_index: torch.Tensor) -> GroupStatistics:
    """Count, mean and standard deviation of `values` within groups.

    Float64 and two passes: a group of equal rewards has a deviation of about 1e-17, so that dividing by it plus 1e-6
    gives 0 and not amplified rounding.

    Args:
        values: float64 [B].
        live: bool [B]; other rows are left out.
        group_index: int64 [B], 0..G-1.
    """
    groups = int(group_index.max()) + 1 if group_index.numel() else 0

    def total(rows: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(groups, dtype=torch.float64, device=rows.device)
        return zeros.index_add(0, group_index, torch.where(live, rows, 0.0))[group_index]

    count = total(torch.ones_like(values))
    mean = total(values) / count.clamp(min=1)
    variance = total((values - mean) ** 2) / (count - 1).clamp(min=1)
    return GroupStatistics(count=count, mean=mean, std=variance.sqrt())

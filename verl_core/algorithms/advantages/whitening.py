"""Batch normalisation of advantages. Invariant: statistics are over trainable tokens of the whole batch; a row's cells
add up in float32, rows in float64, around a mean that is taken twice: the second time of what the first left over, so
that equal values come out as 0 however large they are.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.counting import row_counts

EPSILON = 1e-8


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float32 [B, T]: (x - mean) / sqrt(var + 1e-8) over the cells of `mask`, 0 elsewhere; var is unbiased.

    With fewer than two cells there is no deviation and values stay as they are.

    Args:
        values: float32 [B, T].
        mask: bool [B, T].
    """
    kept = torch.where(mask, values, 0.0)
    cells = row_counts(mask).double().sum()
    if int(cells) < 2:
        return kept
    centred = kept
    for _ in range(2):
        mean = centred.sum(dim=1).double().sum() / cells
        centred = torch.where(mask, centred - mean.float(), 0.0)
    variance = centred.square().sum(dim=1).double().sum() / (cells - 1)
    return centred.div_((variance + EPSILON).sqrt().float())


def whitened_rows(values: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """float64 [B]: the same where every cell of a row has one value.

    Args:
        values: float64 [B], finite.
        cells: float64 [B], trainable tokens of the row.
    """
    total = cells.sum()
    if int(total) < 2:
        return values
    centred = values - (cells * values).sum() / total
    variance = (cells * centred.square()).sum() / (total - 1)
    return centred / (variance + EPSILON).sqrt()

"""How many cells are set, and which is the last. Invariant: exact, but for `count`.

On a CPU numpy counts: torch adds bools up through int64, which takes longer than the formulas around it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_EIGHT = 8  # bytes of a machine word


def row_counts(mask: torch.Tensor) -> torch.Tensor:
    """int64 [B]: the cells of each row of a bool [B, T] mask."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1))
    return mask.sum(dim=1)


def number_of(cells: torch.Tensor) -> int:
    """The cells that are True, or not 0, in a tensor of any shape. Waits for a GPU."""
    return int(np.count_nonzero(cells.numpy()) if cells.device.type == "cpu" else cells.count_nonzero())


def count(cells: torch.Tensor) -> torch.Tensor:
    """float32 scalar: `number_of` for a metric, rounded beyond 2^24. Waits for nothing."""
    return torch.tensor(float(number_of(cells))) if cells.device.type == "cpu" else cells.count_nonzero().float()


def last_cells(mask: torch.Tensor) -> torch.Tensor:
    """int64 [B]: the last set cell of each row of a bool [B, T] mask, T > 0; T - 1 in a row without any."""
    if mask.device.type == "cpu":
        return torch.from_numpy(_last(mask.numpy()))
    return mask.shape[1] - 1 - mask.flip(1).to(torch.uint8).argmax(dim=1)


def _last(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`last_cells`; where cells can be read by eights, first the last eight with a set cell, then the cell in it."""
    rows, width = mask.shape
    if width <= _EIGHT or width % _EIGHT or not mask.flags.c_contiguous:
        from_behind: NDArray[np.int64] = mask[:, ::-1].argmax(axis=1)
        return int(width) - 1 - from_behind
    block = _last(mask.view(np.uint64) != 0)
    cells = mask.reshape(rows, width // _EIGHT, _EIGHT)[np.arange(rows), block]
    return block * _EIGHT + _last(cells)

"""How many cells of a mask are set. Invariant: exact.

On a CPU numpy counts: torch adds bools up through int64, which takes longer than the formulas around it.
"""

from __future__ import annotations

import numpy as np
import torch


def row_counts(mask: torch.Tensor) -> torch.Tensor:
    """int64 [B]: the cells of each row of a bool [B, T] mask."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1))
    return mask.sum(dim=1)


def count(mask: torch.Tensor) -> torch.Tensor:
    """float32 scalar: the cells of a bool mask of any shape."""
    if mask.device.type == "cpu":
        return torch.tensor(float(np.count_nonzero(mask.numpy())))
    return mask.sum().float()

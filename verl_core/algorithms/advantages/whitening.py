"""Batch normalisation of advantages. Invariant: statistics are over trainable tokens of the whole batch, in float64."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.interface import AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions

EPSILON = 1e-8


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float32 [B, T]: (x - mean) / sqrt(var + 1e-8) over the cells of `mask`, 0 elsewhere; var is unbiased.

    With fewer than two cells there is no deviation and values stay as they are.

    Args:
        values: float64 [B, T].
        mask: bool [B, T].
    """
    kept = torch.where(mask, values, 0.0)
    count = mask.sum()
    if int(count) < 2:
        return kept.float()
    centred = torch.where(mask, values - kept.sum() / count, 0.0)
    variance = centred.square().sum() / (count - 1)
    return (centred / (variance + EPSILON).sqrt()).float()


def whitened_rows(per_row: Advantages, inputs: AdvantageInputs) -> Advantages:
    """The same advantages after `whitened`, over sessions that have an outcome; `returns` equals `advantages`."""
    advantages = whitened(per_row.advantages.double(), Sessions.of(inputs).trained(inputs.mask))
    return Advantages(advantages=advantages, returns=advantages)

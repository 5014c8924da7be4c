"""Importance weights pi / pi_rollout. Invariant: detached, finite, 0 where the mask is False; a weight of a sequence is
one number on all of its tokens.
"""

from __future__ import annotations

import torch

from verl_core.config.thresholds import Band

LOG_LIMIT = 20.0


def raw_weights(log_ratio: torch.Tensor, mask: torch.Tensor, level: str) -> torch.Tensor:
    """float32 [B, T]: exp(log r) per token, or exp(sum over the row of log r) on each of its tokens; the exponent is
    clamped to +-20.

    Args:
        log_ratio: float32 [B, T], log pi - log pi_rollout.
        mask: bool [B, T].
        level: `token` or `sequence`.
    """
    kept = torch.where(mask, log_ratio.detach(), 0.0)
    exponent = kept if level == "token" else kept.sum(dim=1, keepdim=True).expand_as(kept)
    return torch.where(mask, exponent.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), 0.0)


def bounded(weights: torch.Tensor, band: Band) -> torch.Tensor:
    """Weights under a threshold: min(w, high) for a single number (truncated importance sampling); for a band 0 outside
    of [low, high] (IcePop), the token keeping its place in every denominator.

    Source: Espeholt et al. 2018, arXiv 1802.01561 (truncation); Ling Team 2025, arXiv 2510.18855 (IcePop).
    """
    if band.low is None:
        return weights.clamp(max=band.high)
    return torch.where((weights >= band.low) & (weights <= band.high), weights, 0.0)


def normalised(weights: torch.Tensor, kept: torch.Tensor, level: str) -> torch.Tensor:
    """Weights divided by their mean: over kept tokens, or over rows with a kept token. Unchanged where that is 0.

    Args:
        weights: float32 [B, T], the whole batch.
        kept: bool [B, T], tokens that are trained on.
    """
    inside = torch.where(kept, weights, 0.0).double()
    if level == "token":
        mean = inside.sum() / kept.sum().clamp(min=1)
    else:
        mean = inside.max(dim=1).values.sum() / kept.any(dim=1).sum().clamp(min=1)
    return weights / mean.float() if float(mean) > 0 else weights

"""The correction as a whole. Invariant: statistics are over all tokens the policy sampled, whether kept or not;
everything is a function of one row, batch normalisation apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_core.algorithms.correction.rejection import kept_by
from verl_core.algorithms.correction.weights import bounded, normalised, raw_weights
from verl_core.config.schema import RolloutCorrectionConfig
from verl_core.config.thresholds import rejections_of, weight_band

WEIGHTS = "rollout_is_weights"


@dataclass(frozen=True, slots=True)
class Corrected:
    """Attributes:
    keep: bool [B, T], a subset of the mask: tokens to train on. Rejected ones leave every denominator.
    weights: float32 [B, T], detached, to multiply the loss of kept tokens with; those of rejected ones are there for
        baselines that they stay in; 0 outside the mask; None without importance weights.
    raw: float32 [B, T], the weights before their threshold; None like them.
    held: bool [B, T], where the threshold changed the weight; None like them.
    """

    keep: torch.Tensor
    weights: torch.Tensor | None = None
    raw: torch.Tensor | None = None
    held: torch.Tensor | None = None


@torch.no_grad()
def correct(log_ratio: torch.Tensor, mask: torch.Tensor, config: RolloutCorrectionConfig) -> Corrected:
    """Weights and kept tokens.

    Args:
        log_ratio: float32 [B, T], log pi - log pi_rollout: pi is the frozen old policy (decoupled mode) or the current
            one (bypass mode).
        mask: bool [B, T], tokens the policy sampled.
        config: settings that hold (`effective`).
    """
    keep = mask
    if config.rollout_rs is not None:
        for rule in rejections_of(config.rollout_rs, config.rollout_rs_threshold):
            keep = keep & kept_by(log_ratio, mask, rule)
    if config.rollout_is is None:
        return Corrected(keep)
    raw = raw_weights(log_ratio, mask, config.rollout_is)
    weights = bounded(raw, weight_band(config.rollout_is_threshold))
    held = weights != raw
    if config.rollout_is_batch_normalize:
        weights = normalised(weights, keep, config.rollout_is)
    return Corrected(keep, weights, raw, held)

"""GMPO: the geometric mean of clipped token ratios."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import (
    LOG_RATIO_LIMIT,
    POLICY_LOSSES,
    PolicyLossInputs,
    policy_loss,
)


@POLICY_LOSSES.register("geo_mean")
def geo_mean(inputs: PolicyLossInputs) -> TokenLoss:
    """Per row: L = -mean(A) exp(mean over tokens of m), m = min(l, high) where A > 0, max(l, -low) where A < 0, else 0,
    l = log(pi / pi_old), clamped to +-20, where the gradient stops. Every trainable token of the row carries the row's
    value.

    low and high bound the log of the ratio (the paper: 0.4 both). `loss_agg_mode=seq-mean-token-mean` gives the paper's
    mean over responses; token-mean weighs responses by their length.

    Metrics: `pg_clipfrac` tokens held by their bound.

    Source: Zhao et al. 2025, arXiv 2507.20673.

    Differences: verl averages over the rows of a micro-batch, whatever `loss_agg_mode` and the global counts say.
    """
    cost, log_ratio = inputs.cost, inputs.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    upward, downward = log_ratio.clamp(max=inputs.clip_high), log_ratio.clamp(min=-inputs.clip_low)
    held = torch.where(cost < 0, upward, torch.where(cost > 0, downward, 0.0))
    row = inputs.row_means(cost) * inputs.row_means(held).exp()
    return policy_loss(inputs, row.expand_as(held), pg_clipfrac=(held != log_ratio) & (cost != 0))

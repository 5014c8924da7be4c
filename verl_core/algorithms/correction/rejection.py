"""Rejection: tokens or whole rows that lie too far from the policy that sampled them. Invariant: a rule only ever takes
away; several rules hold together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from verl_core.algorithms.counting import row_counts
from verl_core.config.thresholds import Rejection

LOG_LIMIT = 20.0


def _k3(x: torch.Tensor) -> torch.Tensor:
    """r - 1 - log r, r capped at e^20: never negative, and finite for every finite x."""
    x = x.clamp(max=LOG_LIMIT)
    return x.exp() - 1 - x


# log r -> the statistic of one token; r = pi / pi_rollout.
TOKEN_STATISTICS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda x: -x,
    "k2": lambda x: 0.5 * x.square(),
    "k3": _k3,
}


def statistic(log_ratio: torch.Tensor, mask: torch.Tensor, rule: Rejection) -> torch.Tensor:
    """float32 [B, T] (`token`) or [B, 1] (of a sequence: its tokens' sum, mean or largest; 0 without tokens).

    k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r: estimates of KL(pi_rollout, pi) from a token that pi_rollout
    drew.

    Source: Schulman 2020, "Approximating KL divergence"; Liu et al. 2025, "When speed kills stability" (the use).
    """
    values = TOKEN_STATISTICS[rule.kind](torch.where(mask, log_ratio.detach(), 0.0))
    if rule.level == "token":
        return values
    kept = torch.where(mask, values, 0.0)
    if rule.level == "seq_max":
        return kept.max(dim=1, keepdim=True).values  # k2 and k3 are never negative
    total = kept.sum(dim=1, keepdim=True)
    return total if rule.level == "seq_sum" else total / row_counts(mask).clamp(min=1)[:, None]


def kept_by(log_ratio: torch.Tensor, mask: torch.Tensor, rule: Rejection) -> torch.Tensor:
    """bool [B, T]: cells of the mask that the rule keeps. k1: log low <= k1 <= log high; k2, k3: <= high."""
    values = statistic(log_ratio, mask, rule)
    if rule.kind == "k1":
        low = 1 / rule.band.high if rule.band.low is None else rule.band.low
        holds = (values >= math.log(low)) & (values <= math.log(rule.band.high))
    else:
        holds = values <= rule.band.high
    return mask & holds

"""Token rewards: the outcome score, and the KL penalty when it is paid in the reward.

Invariant: a row's score lands on its last trainable token; a row without one gets no reward at all.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.counting import last_cells, row_counts


def outcome_rewards(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float32 [B, T]: `scores` [B] on the last trainable token of each row, 0 elsewhere.

    Args:
        scores: float32 [B].
        mask: bool [B, T].
    """
    last = last_cells(mask)[:, None]
    there = torch.where(mask.gather(1, last), scores[:, None].float(), 0.0)  # 0 in a row without any
    return torch.zeros(mask.shape, device=mask.device).scatter_(1, last, there)


def penalised_rewards(rewards: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, beta: float) -> torch.Tensor:
    """float32 [B, T]: r - beta KL on trainable tokens, 0 elsewhere.

    Args:
        rewards, kl: float32 [B, T]; `kl` in nats, from `kl_penalty`.
        beta: the controller's value.

    Source: Ouyang et al. 2022, arXiv 2203.02155, eq. 2 (token form).
    """
    return torch.where(mask, rewards - beta * kl, 0.0)


def mean_kl(kl: torch.Tensor, mask: torch.Tensor) -> float:
    """Nats per token: the mean over live rows of the row's mean. What a `KLController` is told; 0.0 without live
    rows.
    """
    tokens = row_counts(mask)
    live = tokens > 0
    row_means = torch.where(mask, kl, 0.0).sum(dim=1, dtype=torch.float64) / tokens.clamp(min=1)
    return float(row_means.sum() / live.sum().clamp(min=1))

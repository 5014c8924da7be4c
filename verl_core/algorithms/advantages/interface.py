"""What an advantage estimator gets and gives. Invariant: rows without a trainable token take no part in any
statistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.registry import Registry


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """One global batch, padded right. New estimators add fields with defaults.

    Attributes:
        token_rewards: float32 [B, T], reward units.
        mask: bool [B, T], True on trainable tokens. A row that is False everywhere was rejected or quarantined.
        group_index: int64 [B], 0..G-1; rows of one prompt share a number and need not be adjacent.
        norm_by_std: `algorithm.norm_adv_by_std_in_grpo`.
    """

    token_rewards: torch.Tensor
    mask: torch.Tensor
    group_index: torch.Tensor
    norm_by_std: bool = True

    def __post_init__(self) -> None:
        rows = self.mask.shape[0]
        if self.token_rewards.shape != self.mask.shape or self.group_index.shape != (rows,):
            raise ValueError(
                f"shapes disagree: token_rewards {tuple(self.token_rewards.shape)}, mask {tuple(self.mask.shape)}, "
                f"group_index {tuple(self.group_index.shape)}"
            )

    @property
    def live(self) -> torch.Tensor:
        """bool [B]: rows with at least one trainable token."""
        return self.mask.any(dim=1)

    @property
    def outcomes(self) -> torch.Tensor:
        """float64 [B]: the sum of a row's token rewards over its mask; 0 on rows that are not live."""
        return torch.where(self.mask, self.token_rewards, 0.0).sum(dim=1, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Advantages:
    """Both float32 [B, T], 0 where the mask is False. `returns` is what a critic would be fitted to."""

    advantages: torch.Tensor
    returns: torch.Tensor


AdvantageEstimator = Callable[[AdvantageInputs], Advantages]

ADVANTAGES: Registry[AdvantageEstimator] = Registry("advantage estimator", "algorithm.adv_estimator")

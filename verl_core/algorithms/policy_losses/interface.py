"""What a policy loss gets and gives. Invariant: losses stay per token and metrics stay sums, so any split adds up
exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.registry import Registry

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class PolicyLossInputs:
    """One micro-batch, padded right. New losses add fields with defaults.

    Attributes:
        log_probs: float32 [B, T], nats, of the current policy; carries the gradient.
        old_log_probs: float32 [B, T], of the frozen policy of the step.
        advantages: float32 [B, T].
        mask: bool [B, T], trainable tokens.
        clip_low, clip_high: distances of the two clip boundaries from 1.
        clip_c: dual-clip bound, > 1.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float = 3.0

    def log_ratio(self) -> torch.Tensor:
        """float32 [B, T]: log(pi / pi_old), clamped to +-20 so that its exponential is finite; 0 where the mask is
        False.
        """
        ratio = torch.where(self.mask, self.log_probs - self.old_log_probs, 0.0)
        return ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def masked_advantages(self) -> torch.Tensor:
        """float32 [B, T]: advantages, 0 where the mask is False."""
        return torch.where(self.mask, self.advantages, 0.0)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss before aggregation.

    Attributes:
        per_token: float32 [B, T], 0 where the mask is False.
        sums: detached float32 scalars, each a sum over trainable tokens; divided by the token count of the whole
            batch they are the metrics `actor/<name>`.
    """

    per_token: torch.Tensor
    sums: dict[str, torch.Tensor]


PolicyLossFunction = Callable[[PolicyLossInputs], PolicyLoss]

POLICY_LOSSES: Registry[PolicyLossFunction] = Registry("policy loss", "actor_rollout_ref.actor.policy_loss")

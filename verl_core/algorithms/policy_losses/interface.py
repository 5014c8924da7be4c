"""What a policy loss gets and gives. Invariant: losses stay per token and metrics stay sums, so any split adds up
exactly; no gradient leaves a cell outside the mask, whatever lies there: `current`, `old`, `cost`, `log_ratio` and
`ratio` are harmless there, and bare log-probs are only multiplied with `cost`, which is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.counting import count, row_counts
from verl_core.algorithms.registry import Registry

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True)
class PolicyLossInputs:
    """One micro-batch of whole rows, padded right. New losses add fields with defaults.

    Attributes:
        log_probs: float32 [B, T], nats, of the current policy; carries the gradient.
        old_log_probs: float32 [B, T], of the frozen policy of the step.
        advantages: float32 [B, T].
        mask: bool [B, T], trainable tokens.
        clip_low, clip_high: distances of the two clip boundaries from 1 (some losses: from another centre).
        clip_c: dual-clip bound, > 1.
        tau_pos, tau_neg: sharpness of the gate of sapo where A > 0 and elsewhere.
        dro_beta: weight of the squared log-ratio of dro.
        kl_coef: weight of |log-ratio| of kl_cov.
        marked: bool [B, T], tokens that clip_cov and kl_cov treat apart; chosen over the whole mini-batch.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    dro_beta: float | None = None
    kl_coef: float = 0.1
    marked: torch.Tensor | None = None

    @cached_property
    def current(self) -> torch.Tensor:
        """float32 [B, T]: log-probs, 0 where the mask is False."""
        with torch.enable_grad():  # whoever asks first, without gradients perhaps
            return torch.where(self.mask, self.log_probs, 0.0)

    @cached_property
    def old(self) -> torch.Tensor:
        """float32 [B, T]: old log-probs, 0 where the mask is False."""
        return torch.where(self.mask, self.old_log_probs, 0.0)

    @cached_property
    def log_ratio(self) -> torch.Tensor:
        """float32 [B, T]: log(pi / pi_old), 0 where the mask is False."""
        with torch.enable_grad():  # as above
            return torch.where(self.mask, self.log_probs - self.old_log_probs, 0.0)

    @cached_property
    def ratio(self) -> torch.Tensor:
        """float32 [B, T]: pi / pi_old of a log-ratio clamped to +-20, so finite; 1 where the mask is False."""
        with torch.enable_grad():  # as above
            return self.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    @cached_property
    def cost(self) -> torch.Tensor:
        """float32 [B, T]: the advantages with their sign changed, 0 where the mask is False."""
        return torch.where(self.mask, self.advantages, 0.0).neg_()

    def row_means(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [B, 1]: mean of `values` over the row's trainable tokens, 0 in a row without any."""
        total = torch.where(self.mask, values, 0.0).sum(dim=1, keepdim=True)
        return total / row_counts(self.mask).clamp(min=1)[:, None]

    def marks(self) -> torch.Tensor:
        """`marked`, where trainable.

        Raises:
            ValueError: no tokens were marked: the caller left the choice out.
        """
        if self.marked is None:
            raise ValueError("this loss needs marked, the tokens chosen over the whole mini-batch")
        return self.marked & self.mask


def policy_loss(inputs: PolicyLossInputs, per_token: torch.Tensor, **counted: torch.Tensor) -> TokenLoss:
    """The loss with its metrics: `ppo_kl`, the sum of log(pi_old / pi), the k1 estimate of KL(pi_old, pi), and how
    many trainable tokens are True in each of `counted`, bool [B, T].
    """
    with torch.no_grad():
        sums = {name: count(where & inputs.mask) for name, where in counted.items()}
        sums["ppo_kl"] = -inputs.log_ratio.detach().sum()
    return TokenLoss(per_token=per_token, sums=sums)


PolicyLossFunction = Callable[[PolicyLossInputs], TokenLoss]

POLICY_LOSSES: Registry[PolicyLossFunction] = Registry("policy loss", "actor_rollout_ref.actor.policy_loss.loss_mode")

"""clip_cov and kl_cov: tokens whose covariance of log-prob and advantage is large drive the entropy down; they are
clipped, or held back by a KL.

Invariant: which tokens is decided once over the whole mini-batch, from its advantages and old log-probs, before it is
cut into micro-batches. So no split changes the choice; at the first update of a step old and current are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss
from verl_core.algorithms.registry import Registry


@dataclass(frozen=True, slots=True)
class MarkInputs:
    """The trainable tokens of one mini-batch, N of them, in the batch's order.

    Attributes:
        log_probs: float32 [N], of the old policy.
        advantages: float32 [N].
        ratio: share of tokens to mark.
        low, high: bounds of the covariance, clip_cov only.
        seed: of the choice among candidates, clip_cov only.
    """

    log_probs: torch.Tensor
    advantages: torch.Tensor
    ratio: float
    low: float = 1.0
    high: float = 5.0
    seed: int = 0

    @property
    def covariance(self) -> torch.Tensor:
        """float64 [N]: (log pi - mean) (A - mean) of each token."""
        return _centred(self.log_probs).mul_(_centred(self.advantages))

    @property
    def count(self) -> int:
        """Tokens to mark: the ratio of all, at least 1."""
        return max(1, int(self.ratio * len(self.log_probs)))


Marking = Callable[[MarkInputs], torch.Tensor]

MARKINGS: Registry[Marking] = Registry("token marking", "actor_rollout_ref.actor.policy_loss.loss_mode")


@MARKINGS.register("clip_cov")
def mark_some(inputs: MarkInputs) -> torch.Tensor:
    """bool [N]: at most `count` tokens, drawn evenly from those with low < covariance < high."""
    covariance = inputs.covariance
    candidates = ((covariance > inputs.low) & (covariance < inputs.high)).nonzero()[:, 0]
    lots = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(inputs.seed))
    return _marked(candidates[lots[: inputs.count].to(candidates.device)], len(covariance))


@MARKINGS.register("kl_cov")
def mark_top(inputs: MarkInputs) -> torch.Tensor:
    """bool [N]: the `count` tokens of largest covariance."""
    covariance = inputs.covariance
    return _marked(covariance.topk(min(inputs.count, len(covariance))).indices, len(covariance))


def _centred(values: torch.Tensor) -> torch.Tensor:
    """float64 [N], less their mean."""
    exact = values.double()
    return exact - exact.mean()


def _marked(places: torch.Tensor, size: int) -> torch.Tensor:
    marked = torch.zeros(size, dtype=torch.bool, device=places.device)
    marked[places] = True
    return marked


@POLICY_LOSSES.register("clip_cov")
def clip_cov(inputs: PolicyLossInputs) -> TokenLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)), and 0 on marked tokens: a random share `clip_cov_ratio` of all,
    among those with clip_cov_lb < cov < clip_cov_ub, cov = (log pi_old - mean) (A - mean) over the mini-batch.

    Settings: `actor.policy_loss.clip_cov_ratio`, `clip_cov_lb`, `clip_cov_ub`.

    Metrics: `pg_clipfrac` as in vanilla, of those that are not marked; `pg_markfrac` tokens marked.

    Source: Cui et al. 2025, arXiv 2505.22617 (Clip-Cov).

    Differences: verl takes current log-probs and the means of a micro-batch, so that its choice depends on the split.
    TRL does not have it.
    """
    cost, ratio, marks = inputs.cost, inputs.ratio, inputs.marks()
    free = cost * ratio
    clipped = cost * ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    loss = torch.where(marks, 0.0, torch.maximum(free, clipped))
    return policy_loss(inputs, loss, pg_clipfrac=(clipped > free) & ~marks, pg_markfrac=marks)


@POLICY_LOSSES.register("kl_cov")
def kl_cov(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -A r, plus ppo_kl_coef |log r| on marked tokens: the share `kl_cov_ratio` of largest cov (as in clip_cov).

    Settings: `actor.policy_loss.kl_cov_ratio`, `ppo_kl_coef`.

    Metrics: `pg_markfrac` tokens marked.

    Source: Cui et al. 2025, arXiv 2505.22617 (KL-Cov).

    Differences: as `clip_cov`.
    """
    log_ratio, marks = inputs.log_ratio, inputs.marks()
    loss = inputs.cost * inputs.ratio
    held = loss + inputs.kl_coef * log_ratio.abs()
    return policy_loss(inputs, torch.where(marks, held, loss), pg_markfrac=marks)

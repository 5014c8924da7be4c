"""What a distillation loss gets and gives. Invariant: losses stay per token and metrics stay sums, so any split adds up
exactly; a cell outside the mask is never read, whatever stands in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.registry import Registry


@dataclass(frozen=True, slots=True)
class DistillationInputs:
    """One micro-batch of whole rows, padded right.

    Attributes:
        log_probs: float32 [B, T], nats, of the sampled tokens under the current policy; carries the gradient.
        teacher_log_probs: float32 [B, T], of the same tokens under the teacher.
        mask: bool [B, T], trainable tokens.
        candidates: float32 [B, T, K], of the teacher's K most probable tokens under the current policy; carries the
            gradient. None where the loss reads sampled tokens only.
        teacher_candidates: float32 [B, T, K], of the same under the teacher; -inf = no such token.
        tail: what stands for the tokens that are not among the K; see forward_kl_topk.
        weights: float32 [B, T], importance weights of the sampled tokens; None = 1. A loss that sums over the
            vocabulary does not read them: it is an expectation already.
        clamp: bound of the loss of one token, nats; beyond it there is no gradient. None = no bound.
    """

    log_probs: torch.Tensor
    teacher_log_probs: torch.Tensor
    mask: torch.Tensor
    candidates: torch.Tensor | None = None
    teacher_candidates: torch.Tensor | None = None
    tail: str = "bucket"
    weights: torch.Tensor | None = None
    clamp: float | None = None


def bounded(per_token: torch.Tensor, clamp: float | None) -> torch.Tensor:
    """The losses, none of them farther than `clamp` from 0."""
    return per_token if clamp is None else per_token.clamp(-clamp, clamp)


def token_loss(inputs: DistillationInputs, per_token: torch.Tensor, **sums: torch.Tensor) -> TokenLoss:
    """The loss, bounded and masked, with `sums`: float32 [B, T] each, summed over trainable tokens."""
    added = {name: torch.where(inputs.mask, values.detach(), 0.0).sum() for name, values in sums.items()}
    return TokenLoss(torch.where(inputs.mask, bounded(per_token, inputs.clamp), 0.0), added)


DistillationLoss = Callable[[DistillationInputs], TokenLoss]

DISTILLATION_LOSSES: Registry[DistillationLoss] = Registry(
    "distillation loss", "distillation.distillation_loss.loss_mode"
)

"""The sampled losses: the estimators of `verl_core.algorithms.kl`, with the teacher in the place of the reference."""

from __future__ import annotations

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.distillation.interface import (
    DISTILLATION_LOSSES,
    DistillationInputs,
    DistillationLoss,
    token_loss,
)
from verl_core.algorithms.kl import KL_ESTIMATORS, kl_penalty


def _sampled(name: str) -> DistillationLoss:
    def loss(inputs: DistillationInputs) -> TokenLoss:
        """One number per sampled token a, from x = log pi(a) - log teacher(a): an estimate of KL(pi, teacher), the
        reverse KL, for a drawn from pi."""
        values = kl_penalty(name, inputs.log_probs, inputs.teacher_log_probs, inputs.mask)
        return token_loss(inputs, values if inputs.weights is None else inputs.weights * values)

    loss.__qualname__ = f"sampled[{name}]"
    return loss


for _name in KL_ESTIMATORS.names():
    DISTILLATION_LOSSES.register(_name)(_sampled(_name))

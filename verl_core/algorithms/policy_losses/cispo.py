"""CISPO: the importance weight is clipped, not the token's gradient."""

from __future__ import annotations

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss


@POLICY_LOSSES.register("cispo")
def cispo(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -stop_gradient(clip(r, 1 - low, 1 + high)) A log pi.

    Every token keeps a gradient. `clip_ratio_low=1` leaves only the upper bound, as in the paper.

    Metrics: `pg_clipfrac` tokens whose weight was clipped.

    Source: MiniMax 2025, arXiv 2506.13585.

    Differences: TRL's `cispo` clips above only, at `epsilon_high` (its weight, not its distance from 1).
    """
    ratio = inputs.ratio.detach()
    weight = ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    loss = weight * inputs.cost * inputs.log_probs
    return policy_loss(inputs, loss, pg_clipfrac=weight != ratio)

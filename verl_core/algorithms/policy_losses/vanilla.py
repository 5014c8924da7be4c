"""The clipped surrogate of PPO, with the second clip for negative advantages."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss


@POLICY_LOSSES.register("vanilla")
def vanilla(inputs: PolicyLossInputs) -> TokenLoss:
    """With r = pi / pi_old: L = max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 also L <= -A c.

    Metrics: `pg_clipfrac` tokens where the clipped branch is the larger one, `pg_clipfrac_lower` tokens with A < 0
    held by the second clip.

    Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7; Ye et al. 2020, arXiv 1912.09729, eq. 5 (dual clip).

    Differences: TRL has no second clip unless `delta` is given. verl leaves rejected tokens in the denominator of
    token-mean; here they leave it.
    """
    cost, ratio = inputs.cost, inputs.ratio
    with torch.no_grad():
        # The same as bounds of r, which depend on the sign of A alone: 1 + high above, or 1 - low below and c above.
        lowest = torch.where(cost > 0, 1 - inputs.clip_low, 0.0)
        upward = cost < 0
        highest = torch.where(upward, 1 + inputs.clip_high, inputs.clip_c)
    held = ratio.clamp(lowest, highest)
    above = (held < ratio) & (cost != 0)
    clipped = (above & upward) | (held > ratio)
    return policy_loss(inputs, cost * held, pg_clipfrac=clipped, pg_clipfrac_lower=above & ~upward)

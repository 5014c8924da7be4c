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
    advantages, ratio = inputs.masked_advantages(), inputs.log_ratio().exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    worst = torch.maximum(free, clipped)
    bound = -advantages * inputs.clip_c
    negative = advantages < 0
    loss = torch.where(negative, torch.minimum(worst, bound), worst)
    return policy_loss(inputs, loss, pg_clipfrac=clipped > free, pg_clipfrac_lower=negative & (worst > bound))

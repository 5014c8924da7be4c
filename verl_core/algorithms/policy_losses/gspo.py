"""GSPO: one ratio per response, the geometric mean of its tokens' ratios."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss

LOG_LIMIT = 10.0


@POLICY_LOSSES.register("gspo")
def gspo(inputs: PolicyLossInputs) -> TokenLoss:
    """s = exp(mean over the row of log(pi / pi_old)); L = max(-A s, -A clip(s, 1 - low, 1 + high)) on every token.

    The value is the row's; the gradient of token t is that of s_t = s pi / stop_gradient(pi), so that with
    `loss_agg_mode=seq-mean-token-mean` value and gradient are those of the paper's loss per response (its clip range is
    about 3e-4 to 4e-4). log s is capped at 10, where the gradient stops.

    Source: Zheng et al. 2025, arXiv 2507.18071 (the form per token, GSPO-token).

    Differences: TRL calls it `importance_sampling_level="sequence"`. A response that mixes weight versions has no
    single old policy: use recomputed old log-probs (not bypass mode).
    """
    advantages, log_probs = inputs.gain, inputs.current
    row = inputs.row_means(inputs.log_ratio.detach())
    ratio = (row + log_probs - log_probs.detach()).clamp(max=LOG_LIMIT).exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    return policy_loss(inputs, torch.maximum(free, clipped), pg_clipfrac=clipped > free)

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

    Metrics: `pg_clipfrac` as in vanilla.

    Source: Zheng et al. 2025, arXiv 2507.18071 (the form per token, GSPO-token).

    Differences: TRL calls it `importance_sampling_level="sequence"`. A response that mixes weight versions has no
    single old policy: use recomputed old log-probs (not bypass mode).
    """
    current, cost = inputs.current, inputs.cost
    with torch.no_grad():
        row = inputs.row_means(inputs.log_ratio)
        ratio = row.clamp(max=LOG_LIMIT).exp()
        free = cost * ratio
        clipped = cost * ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
        beyond = clipped > free
        slope = torch.where(beyond | (row > LOG_LIMIT), 0.0, free)  # of s_t = s, pi / pi = 1
        value = torch.maximum(free, clipped)
    return policy_loss(inputs, value + slope * (current - current.detach()), pg_clipfrac=beyond)

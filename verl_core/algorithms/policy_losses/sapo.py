"""SAPO: a soft gate on the ratio in place of a clip."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss


@POLICY_LOSSES.register("sapo")
def sapo(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -A (4 / tau) sigmoid(tau (r - 1)), tau = tau_pos where A > 0, else tau_neg.

    At r = 1 the gradient is that of -A r, further away it dies down; a larger tau_neg makes it die sooner for tokens
    that are pushed down. At r = 1 the value is -2 A / tau, which is not 0: a constant without gradient.

    Settings: `actor.tau_pos`, `actor.tau_neg`.

    Source: Gao et al. 2025, arXiv 2511.20347.

    Differences: verl always aggregates it by seq-mean-token-mean; here `loss_agg_mode` is obeyed.
    """
    upward = inputs.cost < 0
    tau = torch.where(upward, inputs.tau_pos, inputs.tau_neg)
    height = torch.where(upward, 4 / inputs.tau_pos, 4 / inputs.tau_neg).mul_(inputs.cost)
    return policy_loss(inputs, height * torch.sigmoid(tau * (inputs.ratio - 1)))

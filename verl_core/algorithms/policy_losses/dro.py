"""DRO: the plain policy gradient, held near the old policy by a square."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss
from verl_core.errors import ConfigError


@POLICY_LOSSES.register("dro")
def dro(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -(A log pi - beta / 2 log(pi / pi_old)^2).

    Settings: `actor.policy_loss.dro_beta`, which has no default.

    Source: Richemond et al. 2024, arXiv 2405.19107, per token with A for reward minus value.

    Differences: none from verl; TRL does not have it.

    Raises:
        ConfigError: dro_beta is not given or not positive.
    """
    if inputs.dro_beta is None or inputs.dro_beta <= 0:
        raise ConfigError(
            f"actor_rollout_ref.actor.policy_loss.dro_beta: must be greater than 0, got {inputs.dro_beta}"
        )
    pull = inputs.dro_beta / 2 * inputs.log_ratio.square()
    return policy_loss(inputs, torch.addcmul(pull, inputs.cost, inputs.log_probs))

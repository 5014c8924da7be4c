"""GPG: the plain policy gradient."""

from __future__ import annotations

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs


@POLICY_LOSSES.register("gpg")
def gpg(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -A log pi.

    No ratio, so no clip and no `ppo_kl`: right for one update per step; with more, nothing corrects for the drift of
    the policy. Meant for the estimator of the same name.

    Source: Chu et al. 2025, arXiv 2504.02546; Williams 1992.

    Differences: none from verl; TRL does not have it.
    """
    return TokenLoss(per_token=inputs.cost * inputs.log_probs, sums={})

"""DPPO: a trust region in probability instead of ratio, so that rare tokens are not clipped for tiny moves."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses.interface import POLICY_LOSSES, PolicyLossInputs, policy_loss

ALMOST_NONE = 2.0**-20


@POLICY_LOSSES.register("dppo_tv")
def dppo_tv(inputs: PolicyLossInputs) -> TokenLoss:
    """L = -A stop_gradient(min(r, c)) log pi where the token is kept, else 0. Kept: p - p_old <= high where A > 0,
    p - p_old >= -low elsewhere (p, p_old: probabilities of the token).

    |p - p_old| is the total variation distance of the two-way split "this token or another". A token beyond the bound
    is dropped only if its gradient would move it further away. `clip_ratio_low`, `clip_ratio_high` are the bounds in
    probability, `clip_ratio_c` is c.

    Metrics: `pg_clipfrac` tokens dropped.

    Source: Qi et al. 2026, arXiv 2602.04879, the binary TV form.

    Differences: none from verl, whose own default of c is 20 in code and 3 in its YAML; here 3. TRL does not have it.
    """
    with torch.no_grad():
        moved = inputs.current.exp() - inputs.old.exp()
        beyond = torch.where(inputs.cost < 0, moved > inputs.clip_high, moved < -inputs.clip_low)
    return _kept(inputs, beyond)


@POLICY_LOSSES.register("dppo_kl")
def dppo_kl(inputs: PolicyLossInputs) -> TokenLoss:
    """As `dppo_tv` with D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), the KL of the same two-way
    split. Kept: D <= high or p <= p_old where A > 0, D <= low or p >= p_old elsewhere.

    Metrics: `pg_clipfrac` tokens dropped.

    Source: Qi et al. 2026, arXiv 2602.04879, the binary KL form.

    Differences: as `dppo_tv`.
    """
    with torch.no_grad():
        log_p, log_old = inputs.current.detach(), inputs.old
        rest, old_rest = (torch.expm1(each).neg_().clamp_(min=ALMOST_NONE) for each in (log_p, log_old))  # 1 - p
        divergence = (1 - old_rest) * (log_old - log_p) + old_rest * (old_rest.log() - rest.log())
        upward = (divergence > inputs.clip_high) & (log_p > log_old)
        downward = (divergence > inputs.clip_low) & (log_p < log_old)
        beyond = torch.where(inputs.cost < 0, upward, downward)
    return _kept(inputs, beyond)


def _kept(inputs: PolicyLossInputs, beyond: torch.Tensor) -> TokenLoss:
    """A log-prob that is not a number lies beyond nothing: its loss says so."""
    weight = inputs.ratio.detach().clamp(max=inputs.clip_c)
    loss = inputs.cost * weight * inputs.log_probs
    return policy_loss(inputs, torch.where(beyond, 0.0, loss), pg_clipfrac=beyond)

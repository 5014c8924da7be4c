"""The critic's loss, and how good its values are. Invariant: losses stay per token and metrics stay sums, so that any
split adds up exactly.

The value of token t is that of the state before it is sampled: it has seen the prompt and the response up to t - 1, and
estimates what is still to come, the reward of token t included.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.counting import count


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> TokenLoss:
    """L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2 with c = `critic.cliprange_value`.

    A value that has moved by more than c towards its return gets no more gradient; one that moved away is pulled back
    as ever.

    Args:
        values: float32 [B, T], of the current critic; carries the gradient.
        old_values: float32 [B, T], of the critic that the step started from.
        returns: float32 [B, T], A + V_old before whitening.
        mask: bool [B, T], trainable tokens.
        clip: c, in units of reward.

    Metrics: `vf_clipfrac` tokens where the clipped branch is the larger one, `vpred_mean` the mean of V.

    Source: the reference implementation of Schulman et al. 2017 (arXiv 1707.06347); written down in Engstrom et al.
    2020, arXiv 2005.12729, section 3.

    Differences: none to verl. TRL scales it with `vf_coef`, as its two networks share one optimizer; here each has its
    own.
    """
    current = torch.where(mask, values, 0.0)
    old = torch.where(mask, old_values, 0.0)
    target = torch.where(mask, returns, 0.0)
    held = torch.maximum(torch.minimum(current, old + clip), old - clip)
    free, clipped = (current - target).square(), (held - target).square()
    with torch.no_grad():
        sums = {"vf_clipfrac": count(clipped > free), "vpred_mean": current.sum()}
    worst = torch.where(clipped > free, clipped, free)  # at the bound a value is free; maximum() halves its slope
    return TokenLoss(0.5 * worst, sums)


def explained_variance(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> float | None:
    """1 - Var(R - V) / Var(R) over the cells of the mask, float64: 1 = the critic knew, 0 = no better than a constant,
    below 0 = worse. None where returns do not vary: there is nothing to explain.

    Args:
        values, returns: float32, of one shape.
        mask: bool, of the same shape.
    """
    expected, target = values[mask].double(), returns[mask].double()
    if len(target) < 2 or not float(target.var()):
        return None
    return 1.0 - float((target - expected).var() / target.var())

"""The distance to the teacher as a reward of every sampled token. Invariant: computed once, under the frozen policy of
the step; no gradient."""

from __future__ import annotations

import torch

from verl_core.algorithms.distillation.interface import bounded
from verl_core.algorithms.kl import kl_penalty


def distillation_advantages(
    name: str,
    old_log_probs: torch.Tensor,
    teacher_log_probs: torch.Tensor,
    mask: torch.Tensor,
    clamp: float | None = None,
) -> torch.Tensor:
    """float32 [B, T]: A = -k(x) with x = log pi_old(a) - log teacher(a) and k the estimator `loss_mode`; 0 where the
    mask is False.

    With k1 the policy gradient of it is, in expectation, minus the gradient of KL(pi, teacher) at each state, since a
    constant baseline changes nothing: E[grad log pi x] = grad KL. A token answers for itself alone: nothing is carried
    back to the tokens before it. The other estimators weigh tokens otherwise, and the policy gradient of them is no
    longer that of the KL.

    Args:
        name: key of `verl_core.algorithms.kl.KL_ESTIMATORS`.
        old_log_probs, teacher_log_probs: float32 [B, T], nats, of the sampled tokens.
        mask: bool [B, T].
        clamp: bound of |A|, nats.

    Source: Lu et al. 2025, "On-policy distillation", Thinking Machines Lab; Gu et al. 2024, arXiv 2306.08543, section
    2.2 (reverse KL by policy gradient).

    Differences: verl adds a second policy loss with its own clip settings, times the coefficient; here the two
    advantages are added and clipped as one.
    """
    return -bounded(kl_penalty(name, old_log_probs, teacher_log_probs, mask), clamp)

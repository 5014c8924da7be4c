"""The Bradley-Terry loss of pairwise preferences. Invariant: only the difference of two scores counts, and a pair that
is masked out reaches neither the value nor the gradient, whatever its numbers are."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus


def bradley_terry(
    chosen: torch.Tensor, rejected: torch.Tensor, margin: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """-log sigmoid(chosen - rejected - margin) of every pair, 0 where the mask is False.

    P(chosen is preferred) = exp(s_c) / (exp(s_c) + exp(s_r)) (Bradley and Terry 1952), fitted to comparisons by its
    log-likelihood: Christiano et al. 2017 (arXiv 1706.03741), section 2.2.3; Ouyang et al. 2022 (arXiv 2203.02155),
    eq. 1. The margin asks for a larger distance where the preference is strong: Touvron et al. 2023 (arXiv 2307.09288),
    eq. 2; 0 everywhere is the plain loss.

    Args:
        chosen, rejected: float32 [N], scores.
        margin: float32 [N], at least 0.
        mask: bool [N].

    Returns:
        float32 [N], nats.
    """
    distance = torch.where(mask, chosen - rejected - margin, 0.0)
    return torch.where(mask, softplus(-distance), 0.0)

"""The forward KL over the teacher's most probable tokens."""

from __future__ import annotations

import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.distillation.interface import DISTILLATION_LOSSES, DistillationInputs, token_loss

# Of the mass outside the top k, either model's: below it float32 knows rounding only, and the logarithm is steep.
LEAST_TAIL = 1e-6


@DISTILLATION_LOSSES.register("forward_kl_topk")
def forward_kl_topk(inputs: DistillationInputs) -> TokenLoss:
    """KL(teacher, pi) over S, the teacher's k most probable tokens, with p the teacher's and q the policy's
    probabilities, P and Q their sums over S. `distillation.distillation_loss.tail` says what stands for the rest:
    `bucket`: sum over S of p log(p / q) + (1 - P) log((1 - P) / (1 - Q)), the KL with all other tokens as one; it is
    at most the whole KL, and equal to it at k = vocabulary; 1 - Q is held above 1e-6.
    `renormalise`: sum over S of (p / P) log((p / P) / (q / Q)); the mass outside S is left to itself.
    `drop`: sum over S of p log(p / q); it may be negative, and pulls q to p / P, all mass inside S.

    Metrics: `teacher_mass` the mean of P, `student_mass` the mean of Q.

    Source: Agarwal et al. 2024, arXiv 2306.13649, eq. 2 with the forward KL; the tail bucket is the KL of a
    coarse-grained distribution, bounded by the data processing inequality.

    Differences: verl has `drop` alone, held at 0 from below, which stops the gradient where the policy has already
    more mass on S than the teacher; here nothing is held.

    Raises:
        ValueError: the candidates are missing, or the tail is unknown.
    """
    if inputs.candidates is None or inputs.teacher_candidates is None:
        raise ValueError("forward_kl_topk needs the log-probs of the teacher's most probable tokens")
    known = inputs.mask[..., None] & (inputs.teacher_candidates > -torch.inf)
    log_p = torch.where(known, inputs.teacher_candidates, 0.0)
    log_q = torch.where(known, inputs.candidates, 0.0)
    p = torch.where(known, log_p.exp(), 0.0)
    q = torch.where(known, log_q.exp(), 0.0)
    mass_p, mass_q = p.sum(dim=-1), q.sum(dim=-1)
    inside = (p * (log_p - log_q)).sum(dim=-1)
    if inputs.tail == "drop":
        loss = inside
    elif inputs.tail == "renormalise":
        whole_p = mass_p.clamp(min=LEAST_TAIL)
        loss = inside / whole_p - whole_p.log() + mass_q.clamp(min=LEAST_TAIL).log()
    elif inputs.tail == "bucket":
        rest_p = (1 - mass_p).clamp(min=0.0)
        ratio = rest_p.clamp(min=LEAST_TAIL).log() - (1 - mass_q).clamp(min=LEAST_TAIL).log()
        loss = inside + torch.where(rest_p > LEAST_TAIL, rest_p * ratio, 0.0)
    else:
        raise ValueError(f"no such tail: {inputs.tail!r}")
    return token_loss(inputs, loss, teacher_mass=mass_p, student_mass=mass_q)

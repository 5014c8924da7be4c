"""Entropy of the next-token distribution. Invariant: at most two tensors of the logits' size live at once, one of
them saved.
"""

from __future__ import annotations

import torch


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """H = -sum p log p, nats.

    Args:
        logits: float32 [..., V], already divided by the temperature. -inf means a token that cannot be drawn.

    Returns:
        float32 [...].
    """
    log_p = torch.log_softmax(logits, dim=-1)
    return entropy_from_log_softmax(log_p)


def entropy_from_log_softmax(log_p: torch.Tensor) -> torch.Tensor:
    """Same from normalised log-probs [..., V]; -inf entries add 0."""
    floor = torch.finfo(log_p.dtype).min
    # p log p at p = 0 is 0 in the limit, but 0 x -inf is NaN: a finite floor gives exp(floor) x floor = 0.
    log_p = log_p.clamp(min=floor)
    return -(log_p.exp() * log_p).sum(dim=-1)

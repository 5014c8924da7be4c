"""Discounted sums of what is still to come. Invariant: only the policy's own tokens take a step of time; over other
cells (tool text, padding) a sum is carried unchanged, and the outputs of a session follow each other.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.sessions import Sessions


def discounted(values: torch.Tensor, own: torch.Tensor, decay: float, sessions: Sessions) -> torch.Tensor:
    """float64 [B, T]: S_t = x_t + decay S_(next own token), through all outputs of the session.

    Args:
        values: float64 [B, T], 0 where `own` is False.
        own: bool [B, T].
        decay: in [0, 1].
    """
    sums = values.flip(1).cumsum(1).flip(1) if decay == 1.0 else _recurrence(values, own, decay)
    if sessions.depth == 1:
        return sums
    left = own.flip(1).cumsum(1).flip(1).double()  # own tokens from here on
    start = sessions.chained(sums[:, 0], torch.pow(decay, left[:, 0]))
    return sums + torch.pow(decay, left) * sessions.following(start)[:, None]


def _recurrence(values: torch.Tensor, own: torch.Tensor, decay: float) -> torch.Tensor:
    """The loop over time: columns of all rows at once, contiguous because time comes first."""
    ahead, steps = values.t().contiguous(), torch.where(own, decay, 1.0).double().t().contiguous()
    for t in range(len(ahead) - 2, -1, -1):
        ahead[t].addcmul_(steps[t], ahead[t + 1])
    return ahead.t()


def next_values(values: torch.Tensor, own: torch.Tensor, sessions: Sessions) -> torch.Tensor:
    """float64 [B, T]: the value at the next own token of the session, 0 after the last one.

    Args:
        values: float64 [B, T], 0 where `own` is False.
    """
    width = own.shape[1]
    position = torch.where(own, torch.arange(width, device=own.device), width)
    coming = position.flip(1).cummin(dim=1).values.flip(1)  # the first own cell from here on, width if none
    empty = coming[:, 0] == width
    first = torch.where(empty, 0.0, values.gather(1, coming[:, :1].clamp(max=width - 1))[:, 0])
    after_row = sessions.following(sessions.chained(first, empty.double()))
    padded = torch.cat([values, after_row[:, None]], dim=1)
    coming = torch.cat([coming[:, 1:], torch.full_like(coming[:, :1], width)], dim=1)
    return padded.gather(1, coming)

"""Discounted sums of what is still to come. Invariant: only the policy's own tokens take a step of time, and the
outputs of a session follow each other; at other cells (tool text, padding) a sum means nothing.
"""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.sessions import Sessions
from verl_core.algorithms.counting import last_cells, number_of


def discounted(values: torch.Tensor, own: torch.Tensor, decay: float, sessions: Sessions) -> torch.Tensor:
    """float32 [B, T]: S_t = x_t + decay S_(next own token), through all outputs of the session.

    Args:
        values: float32 [B, T]; where `own` is False they are not read.
        own: bool [B, T].
        decay: in [0, 1].
    """
    if decay == 1.0 and sessions.depth == 1 and (outcome := _at_the_end(values, own)) is not None:
        return outcome[:, None].expand_as(values)
    values = torch.where(own, values, 0.0)
    sums = from_here(values) if decay == 1.0 else _recurrence(values, own, decay)
    if sessions.depth == 1:
        return sums
    left = own.float().flip(1).cumsum(1).flip(1)  # own tokens from here on
    start = sessions.chained(sums[:, 0], torch.pow(decay, left[:, 0]))
    return sums + torch.pow(decay, left) * sessions.following(start)[:, None]


def from_here(values: torch.Tensor) -> torch.Tensor:
    """float32 [N, T]: the sum of each cell and all after it in its row."""
    return values.flip(1).cumsum_(1).flip(1)


def less_rows(sums: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """float32 [B, T]: `sums` less one number for each row, float32 [B]. One sum for a whole row stays one."""
    if sums.stride(1) == 0:
        return (sums[:, 0] - rows)[:, None].expand_as(sums)
    return sums - rows[:, None]


def _at_the_end(values: torch.Tensor, own: torch.Tensor) -> torch.Tensor | None:
    """float32 [B]: the value at each row's last own cell, if no cell of the batch has another: the usual case, a score
    of a whole response, needs no sums. None otherwise.
    """
    if not values.shape[1] or values.dtype != torch.float32:
        return None
    place = last_cells(own)[:, None]
    last = torch.where(own.gather(1, place), values.gather(1, place), 0.0)[:, 0]
    everywhere, there = (number_of(cells.view(torch.int32)) for cells in (values, last))  # faster than floats
    return last if everywhere == there else None


def _recurrence(values: torch.Tensor, own: torch.Tensor, decay: float) -> torch.Tensor:
    """The loop over time: columns of all rows at once, contiguous because time comes first."""
    ahead, steps = values.t().contiguous(), torch.where(own, decay, 1.0).t().contiguous()
    for t in range(len(ahead) - 2, -1, -1):
        ahead[t].addcmul_(steps[t], ahead[t + 1])
    return ahead.t()


def next_values(values: torch.Tensor, own: torch.Tensor, sessions: Sessions) -> torch.Tensor:
    """float32 [B, T]: the value at the next own token of the session, 0 after the last one.

    Args:
        values: float32 [B, T], 0 where `own` is False.
    """
    here, there = values.t().contiguous(), own.t().contiguous()
    # The value at the first own token from each cell on; what follows the row stands in one cell more.
    onward = torch.cat([here, torch.zeros_like(here[:1])])
    _carry_back(onward, there)
    if sessions.depth > 1:
        empty = (~own.any(dim=1)).float()
        onward[-1] = sessions.following(sessions.chained(onward[0], empty))
        onward[:-1] = here
        _carry_back(onward, there)
    return onward[1:].t()


def _carry_back(onward: torch.Tensor, own: torch.Tensor) -> None:
    """In place, float32 [T + 1, B]: a cell that is not the policy's own takes what the next one holds."""
    for t in range(len(own) - 1, -1, -1):
        torch.where(own[t], onward[t], onward[t + 1], out=onward[t])

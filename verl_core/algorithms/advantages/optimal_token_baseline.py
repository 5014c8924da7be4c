"""The optimal token baseline: one baseline per group and time step, weighted by how much a response has moved the
gradient so far.

Invariant: a session is one line of time: its outputs follow each other, with (`tir_...`: without) the tool text between
the policy's tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from verl_core.algorithms.advantages.groups import top_two
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.returns import from_here
from verl_core.algorithms.advantages.sessions import Sessions

EPSILON = 1e-8


@ADVANTAGES.register("optimal_token_baseline")
def optimal_token_baseline(inputs: AdvantageInputs) -> Advantages:
    """A_t = G_t - B_t, B_t = sum_g(G_t W_t) / (sum_g W_t + 1e-8), W_t = sum over the session's tokens up to t of
    w = 1 - 2 pi(a) + sum_v pi(v)^2; returns = G.

    w is the squared norm of the gradient of log pi(a) to the logits; with importance weights rho it is multiplied by
    rho^2. Sums over a group are at the same position of the response, tool text included; a session that has ended
    has G = 0 and keeps its W. Where only one session of the group still runs, B = 0 (a lone session: everywhere).
    The squared probabilities come with the old log-probs, so it cannot run in bypass mode.

    Source: Li et al. 2026, arXiv 2602.07078 (the logit-gradient proxy), in verl's form.

    Differences: verl measures where the longest response stands alone in sampled tokens but cuts at that position; here
    both are positions. verl's V1 trainer cannot run it, as the squared probabilities do not reach the estimator.
    """
    return _estimate(inputs, _Timeline.of(inputs, with_tools=True))


@ADVANTAGES.register("tir_optimal_token_baseline")
def tir_optimal_token_baseline(inputs: AdvantageInputs) -> Advantages:
    """`optimal_token_baseline` with time counted in the policy's own tokens: tool text takes no step, so the k-th
    sampled token of a session is compared with the k-th of its siblings.

    Source: Li et al. 2026, arXiv 2602.07078, in verl's form.

    Differences: as there.
    """
    return _estimate(inputs, _Timeline.of(inputs, with_tools=False))


@dataclass(frozen=True, slots=True)
class _Timeline:
    """Cells [B, T] laid out as [S, P].

    Attributes:
        length: float32 [S], positions in use.
        position: int64 [B, T]; P on cells that have no place. None where every cell lies in its place already: each
            row is a session and its time starts at the first cell.
        width: P.
    """

    sessions: Sessions
    length: torch.Tensor
    position: torch.Tensor | None
    width: int

    @classmethod
    def of(cls, inputs: AdvantageInputs, with_tools: bool) -> _Timeline:
        sessions, own = Sessions.of(inputs), inputs.own
        column = torch.arange(own.shape[1], device=own.device)
        ends = torch.where(own, column.float() + 1, 0.0).amax(dim=1)
        length = ends if with_tools else sessions.sampled.float()
        if inputs.session_index is None and bool((length == ends).all()):
            return cls(sessions, length, None, own.shape[1])
        there = column < ends[:, None] if with_tools else own
        place = column.expand_as(own) if with_tools else own.cumsum(1) - 1
        # A later output starts where the earlier ones ended: the total less what is left from this row on.
        left = sessions.chained(length, torch.ones_like(length))
        total = torch.zeros(len(sessions.last), device=own.device).index_add(0, sessions.of_row, length)
        position = place + (total[sessions.of_row] - left).long()[:, None]
        width = max(1, int(total.max()))
        return cls(sessions, total, torch.where(there, position, width), width)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [S, P] of float32 [B, T], 0 where a session has no cell; values are 0 where there is no place."""
        if self.position is None:
            return values
        flat = torch.zeros(len(self.length) * (self.width + 1), device=values.device)
        return flat.index_copy_(0, self._flat(self.position), values.flatten()).view(-1, self.width + 1)[:, :-1]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [B, T] of float32 [S, P]; without meaning on cells without a place."""
        if self.position is None:
            return values
        padded = torch.cat([values, torch.zeros_like(values[:, :1])], dim=1)
        return padded.flatten()[self._flat(self.position)].view_as(self.position)

    def _flat(self, position: torch.Tensor) -> torch.Tensor:
        return (self.sessions.of_row[:, None] * (self.width + 1) + position).flatten()


def _estimate(inputs: AdvantageInputs, time: _Timeline) -> Advantages:
    to_come = from_here(time.spread(inputs.rewards))
    returns = time.gather(to_come)
    baseline = time.gather(_baseline(to_come, time.spread(_energy(inputs)).cumsum(1), time))
    mask = time.sessions.trained(inputs.mask)
    return Advantages(torch.where(mask, returns - baseline, 0.0), returns=returns)


def _energy(inputs: AdvantageInputs) -> torch.Tensor:
    """float32 [B, T]: w of each token the policy sampled, 0 elsewhere."""
    chance = inputs.needed("old_log_probs").exp()
    energy = torch.add(inputs.needed("sum_pi_squared") + 1, chance, alpha=-2).clamp_(min=0)
    if inputs.is_weights is not None:
        energy = energy * inputs.is_weights.square()
    return torch.where(inputs.own, energy, 0.0)


def _baseline(to_come: torch.Tensor, gone: torch.Tensor, time: _Timeline) -> torch.Tensor:
    """float32 [S, P]."""
    sessions = time.sessions
    counted, group = sessions.counted, sessions.group
    zeros = to_come.new_zeros(int(group.max()) + 1, time.width)
    weight = torch.where(counted[:, None], gone, 0.0)
    above = zeros.index_add(0, group, weight * to_come)
    below = zeros.index_add(0, group, weight)
    length = torch.where(counted, time.length, 0.0).double()
    top = top_two(length, counted, group)
    free_until = torch.where(top.leads, top.second, math.inf)  # from there on the longest session runs alone
    column = torch.arange(time.width, device=group.device, dtype=torch.float64)
    return torch.where(column >= free_until[:, None], 0.0, (above / (below + EPSILON))[group])

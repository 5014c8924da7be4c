"""The optimal token baseline: one baseline per group and time step, weighted by how much a response has moved the
gradient so far.

Invariant: a session is one line of time: its outputs follow each other, with (`tir_...`: without) the tool text between
the policy's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_core.algorithms.advantages.groups import top_two
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
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
        position: int64 [B, T]; P on cells that have no place.
        length: int64 [S], positions in use.
        width: P.
    """

    sessions: Sessions
    position: torch.Tensor
    length: torch.Tensor
    width: int

    @classmethod
    def of(cls, inputs: AdvantageInputs, with_tools: bool) -> _Timeline:
        sessions, own = Sessions.of(inputs), inputs.own
        column = torch.arange(own.shape[1], device=own.device)
        if with_tools:
            place, length = column.expand_as(own), torch.where(own, column + 1, 0).max(dim=1).values
            there = column < length[:, None]
        else:
            place, length, there = own.cumsum(1) - 1, own.sum(1), own
        # A later output starts where the earlier ones ended: the total less what is left from this row on.
        left = sessions.chained(length.double(), torch.ones_like(length, dtype=torch.float64)).long()
        total = torch.zeros_like(sessions.last).index_add(0, sessions.of_row, length)
        position = place + (total[sessions.of_row] - left)[:, None]
        width = max(1, int(total.max()))
        return cls(sessions, torch.where(there, position, width), total, width)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """float64 [S, P] of float64 [B, T], 0 where a session has no cell."""
        flat = torch.zeros(len(self.length) * (self.width + 1), dtype=torch.float64, device=values.device)
        return flat.index_copy_(0, self._flat(), values.flatten()).view(-1, self.width + 1)[:, : self.width]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """float64 [B, T] of float64 [S, P]; 0 on cells without a place."""
        padded = torch.cat([values, torch.zeros_like(values[:, :1])], dim=1)
        return padded.flatten()[self._flat()].view_as(self.position)

    def _flat(self) -> torch.Tensor:
        return (self.sessions.of_row[:, None] * (self.width + 1) + self.position).flatten()


def _estimate(inputs: AdvantageInputs, time: _Timeline) -> Advantages:
    own, sessions = inputs.own, time.sessions
    chance = torch.where(own, inputs.needed("old_log_probs"), 0.0).double().exp()
    energy = (1 - 2 * chance + torch.where(own, inputs.needed("sum_pi_squared"), 0.0).double()).clamp(min=0)
    if inputs.is_weights is not None:
        energy = energy * torch.where(own, inputs.is_weights, 0.0).double().square()
    gone = time.spread(torch.where(own, energy, 0.0)).cumsum(1)
    to_come = time.spread(inputs.rewards).flip(1).cumsum(1).flip(1)
    returns = time.gather(to_come)
    advantages = returns - time.gather(_baseline(to_come, gone, time))
    mask = sessions.trained(inputs.mask)
    masked = torch.where(mask, advantages, 0.0).float()
    return Advantages(masked, returns=torch.where(mask, returns, 0.0).float())


def _baseline(to_come: torch.Tensor, gone: torch.Tensor, time: _Timeline) -> torch.Tensor:
    """float64 [S, P]."""
    sessions = time.sessions
    counted, group = sessions.counted, sessions.group
    zeros = to_come.new_zeros(int(group.max()) + 1, time.width)
    weight = torch.where(counted[:, None], gone, 0.0)
    above = zeros.index_add(0, group, weight * to_come)
    below = zeros.index_add(0, group, weight)
    length = torch.where(counted, time.length, 0).double()
    top = top_two(length, counted, group)
    alone = top.leads[:, None] & (torch.arange(time.width, device=group.device) >= top.second[:, None])
    return torch.where(alone, 0.0, (above / (below + EPSILON))[group])

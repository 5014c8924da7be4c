"""Sessions: an agent run and its outputs, in one place for every estimator.

Invariant: a session counts once, however many outputs it has. Its outputs are consecutive parts of one episode, its
outcome is the sum of their rewards (the trainer gives the score to the last one only), and one advantage holds for all
of them. A session whose last output has no outcome has none either, and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.advantages.interface import AdvantageInputs, Advantages


@dataclass(frozen=True, slots=True)
class Sessions:
    """S sessions of B rows.

    Attributes:
        of_row: int64 [B], the session of each row.
        next_row: int64 [B], the row that continues this one; -1 after the last output.
        depth: largest number of outputs of a session.
        last: int64 [S], the row of the last output.
        group: int64 [S].
        outcome: float64 [S].
        tokens: float64 [S], tokens the policy sampled, all outputs.
        counted: bool [S], takes part in statistics: has an outcome and, unless `baseline_rows` is "all", a token to
            train on.
    """

    of_row: torch.Tensor
    next_row: torch.Tensor
    depth: int
    last: torch.Tensor
    group: torch.Tensor
    outcome: torch.Tensor
    tokens: torch.Tensor
    counted: torch.Tensor

    @classmethod
    def of(cls, inputs: AdvantageInputs) -> Sessions:
        """The sessions of a batch; without a session index every row is one."""
        own = inputs.own
        rows = torch.arange(len(own), device=own.device)
        tokens, live, known = own.sum(dim=1).double(), inputs.live, own.any(dim=1)
        outcome = inputs.outcomes
        if inputs.session_index is None or inputs.output_index is None:
            counted = known if inputs.baseline_rows == "all" else live & known
            none = torch.full_like(rows, -1)
            return cls(rows, none, 1, rows, inputs.group_index, outcome, tokens, counted)
        of_row = inputs.session_index
        next_row, last, depth = _order(of_row, inputs.output_index)
        there = last >= 0
        speaker = last.clamp(min=0)

        def total(values: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(last), dtype=torch.float64, device=own.device).index_add(0, of_row, values)

        counted = there & known[speaker]
        if inputs.baseline_rows == "kept":
            counted = counted & (total(live.double()) > 0)
        group = torch.where(there, inputs.group_index[speaker], 0)
        return cls(of_row, next_row, depth, speaker, group, total(outcome), total(tokens), counted)

    def trained(self, mask: torch.Tensor) -> torch.Tensor:
        """bool [B, T]: the cells of `mask` in sessions that have an outcome."""
        return mask & self.counted[self.of_row][:, None]

    def chained(self, own: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """x with x[row] = own[row] + factor[row] x[next row]; float64 [B]. What follows the last output is 0."""
        value = own
        for _ in range(self.depth - 1):
            value = own + factor * self.following(value)
        return value

    def following(self, values: torch.Tensor) -> torch.Tensor:
        """float64 [B]: the value of the row that continues this one, 0 after the last output."""
        return torch.where(self.next_row >= 0, values[self.next_row.clamp(min=0)], 0.0)


def _order(of_row: torch.Tensor, output_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(next row or -1 [B], row of the last output or -1 [S], depth)."""
    by_output = torch.argsort(output_index, stable=True)
    order = by_output[torch.argsort(of_row[by_output], stable=True)]
    sessions = of_row[order]
    same = sessions[1:] == sessions[:-1]
    next_row = torch.full_like(of_row, -1)
    next_row[order[:-1][same]] = order[1:][same]
    ends = order[torch.cat([~same, same.new_ones(1)])]
    count = torch.bincount(of_row)
    last = torch.full((len(count),), -1, dtype=torch.int64, device=of_row.device)
    last[of_row[ends]] = ends
    return next_row, last, int(count.max())


def per_session(inputs: AdvantageInputs, formula: Callable[[Sessions], torch.Tensor]) -> Advantages:
    """One number per session on every trainable token of all of its outputs; `returns` equals `advantages`.

    Args:
        formula: sessions to float64 [S]; its value at sessions that are not counted is not used.
    """
    sessions = Sessions.of(inputs)
    value = torch.where(sessions.counted, formula(sessions), 0.0)[sessions.of_row].float()
    advantages = torch.where(inputs.mask, value[:, None], 0.0)
    return Advantages(advantages=advantages, returns=advantages)

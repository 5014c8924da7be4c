"""Sessions: an agent run and its outputs, in one place for every estimator.

Invariant: a session counts once, however many outputs it has. Its outputs are consecutive parts of one episode, its
outcome is the sum of their rewards (the trainer gives the score to the last one only), and one advantage holds for all
of them. A session whose last output has no outcome has none either, and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from verl_core.algorithms.advantages.interface import AdvantageInputs, Advantages
from verl_core.algorithms.advantages.whitening import whitened_rows
from verl_core.algorithms.counting import row_counts


@dataclass(frozen=True)
class Sessions:
    """S sessions of B rows. What takes a pass over all cells is computed when it is asked for.

    Attributes:
        inputs: the batch.
        of_row: int64 [B], the session of each row.
        next_row: int64 [B], the row that continues this one; -1 after the last output.
        depth: largest number of outputs of a session.
        last: int64 [S], the row of the last output; 0 where `there` is False.
        there: bool [S], the number is that of a session.
        group: int64 [S].
    """

    inputs: AdvantageInputs
    of_row: torch.Tensor
    next_row: torch.Tensor
    depth: int
    last: torch.Tensor
    there: torch.Tensor
    group: torch.Tensor

    @classmethod
    def of(cls, inputs: AdvantageInputs) -> Sessions:
        """The sessions of a batch; without a session index every row is one."""
        rows = torch.arange(len(inputs.mask), device=inputs.mask.device)
        if inputs.session_index is None or inputs.output_index is None:
            every = torch.ones_like(rows, dtype=torch.bool)
            return cls(inputs, rows, torch.full_like(rows, -1), 1, rows, every, inputs.group_index)
        of_row = inputs.session_index
        next_row, last, depth = _order(of_row, inputs.output_index)
        there = last >= 0
        speaker = last.clamp(min=0)
        group = torch.where(there, inputs.group_index[speaker], 0)
        return cls(inputs, of_row, next_row, depth, speaker, there, group)

    @cached_property
    def outcome(self) -> torch.Tensor:
        """float64 [S]: the sum of all outputs' rewards."""
        return self._total(self.inputs.outcomes)

    @cached_property
    def tokens(self) -> torch.Tensor:
        """float64 [S]: tokens the policy sampled, all outputs."""
        return self._total(self.sampled)

    @cached_property
    def counted(self) -> torch.Tensor:
        """bool [S]: takes part in statistics: has an outcome and, unless `baseline_rows` is "all", a token to train
        on.
        """
        known = self.there & (self.sampled > 0)[self.last]
        return known if self.inputs.baseline_rows == "all" else known & (self._total(self.trainable) > 0)

    def trained(self, mask: torch.Tensor) -> torch.Tensor:
        """bool [B, T]: the cells of `mask`, a subset of the batch's, in sessions that have an outcome."""
        if self.inputs.session_index is None:  # a row with a cell to train on has an outcome
            return mask
        return mask & self.counted[self.of_row][:, None]

    @cached_property
    def sampled(self) -> torch.Tensor:
        """float64 [B]: tokens the policy sampled."""
        return row_counts(self.inputs.own).double()

    @cached_property
    def trainable(self) -> torch.Tensor:
        """float64 [B]: tokens to train on."""
        return self.sampled if self.inputs.sampled is None else row_counts(self.inputs.mask).double()

    def _total(self, values: torch.Tensor) -> torch.Tensor:
        """float64 [S] of float64 [B]: the sum over outputs."""
        if self.inputs.session_index is None:
            return values
        return torch.zeros(len(self.last), dtype=torch.float64, device=values.device).index_add(0, self.of_row, values)

    def chained(self, own: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """x with x[row] = own[row] + factor[row] x[next row]; float [B]. What follows the last output is 0."""
        value = own
        for _ in range(self.depth - 1):
            value = own + factor * self.following(value)
        return value

    def following(self, values: torch.Tensor) -> torch.Tensor:
        """float [B]: the value of the row that continues this one, 0 after the last output."""
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


def per_session(
    inputs: AdvantageInputs, formula: Callable[[Sessions], torch.Tensor], whiten: bool = False
) -> Advantages:
    """One number per session on every trainable token of all of its outputs; `returns` equals `advantages`.

    Args:
        formula: sessions to float64 [S]; its value at sessions that are not counted is not used.
        whiten: normalise afterwards over all trainable tokens of sessions that have an outcome.
    """
    sessions = Sessions.of(inputs)
    counted = sessions.counted[sessions.of_row]
    value = torch.where(sessions.counted, formula(sessions), 0.0)[sessions.of_row]
    if whiten:
        value = torch.where(counted, whitened_rows(value, torch.where(counted, sessions.trainable, 0.0)), 0.0)
    advantages = torch.where(inputs.mask, value.float()[:, None], 0.0)
    return Advantages(advantages=advantages, returns=advantages)

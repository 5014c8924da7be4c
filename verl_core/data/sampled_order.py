"""SampledOrder: the order of serving when a sampler decides it. Invariant: the row behind an ordinal never changes once
it was drawn, and ordinals are drawn in ascending order, each once.

It takes the place of `ServingOrder` in a stream. There are no epochs in it; a nominal one is as long as that order's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.data.order import rows_per_epoch
from verl_core.data.samplers.interface import Sampler
from verl_core.errors import DataError


class SampledOrder:
    """Args:
    sampler: decides; nobody else draws from it.
    rows: of the dataset.
    batch_size: prompts of a step.

    Raises:
        DataError: the rows do not fill one batch.
    """

    def __init__(self, sampler: Sampler, rows: int, batch_size: int) -> None:
        self.per_epoch = rows_per_epoch(rows, batch_size)
        self._sampler, self._rows = sampler, rows
        self.drawn: list[int] = []

    def row_of(self, ordinal: int) -> int:
        """Position of the row behind `ordinal`; draws as far as that.

        Raises:
            DataError: the sampler gave no position of a row.
        """
        while len(self.drawn) <= ordinal:
            row = self._sampler.draw()
            if not 0 <= row < self._rows:
                raise DataError(f"the sampler of data.sampler drew row {row}; there are rows 0 to {self._rows - 1}")
            self.drawn.append(row)
        return self.drawn[ordinal]

    def epoch_of(self, ordinal: int) -> int:
        """Nominal epoch of the ordinal."""
        return ordinal // self.per_epoch

    def state(self) -> dict[str, Any]:
        """Where drawing stands, as JSON values."""
        return {"sampler": self._sampler.state_dict()}

    def restore(self, drawn: Sequence[int], state: Mapping[str, Any]) -> None:
        """Back to where `drawn` were the rows so far and `state` was the state."""
        self.drawn = list(drawn)
        self._sampler.load_state_dict(state["sampler"])

    def update(self, scores: Mapping[int, float]) -> None:
        """Tell the sampler of the mean scores of ordinals; a row that was served twice counts with the mean of both."""
        by_row: dict[int, list[float]] = {}
        for ordinal in sorted(scores):
            by_row.setdefault(self.row_of(ordinal), []).append(scores[ordinal])
        self._sampler.update({row: sum(found) / len(found) for row, found in by_row.items()})

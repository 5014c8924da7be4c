"""Which rows a step learns. Invariant: a function of (seed, epoch) and nothing else, so a resumed run goes on where it
stopped; an epoch has every row once, its last batch may be smaller."""

from __future__ import annotations

from verl_core.data.order import EpochOrders


class EpochBatches:
    """Steps of whole epochs.

    Args:
        rows: of the set.
        batch_size: rows per step.
        shuffle: else file order.
    """

    def __init__(self, rows: int, batch_size: int, shuffle: bool, seed: int) -> None:
        self._batch_size, self._orders = batch_size, EpochOrders(rows, seed, shuffle)
        self.steps_per_epoch = -(-rows // batch_size)

    def epoch_of(self, step: int) -> int:
        """Epoch of global step `step` (1, 2, ...), from 0."""
        return (step - 1) // self.steps_per_epoch

    def rows_of(self, step: int) -> list[int]:
        """Rows of global step `step`."""
        first = (step - 1) % self.steps_per_epoch * self._batch_size
        chosen: list[int] = self._orders.of(self.epoch_of(step))[first : first + self._batch_size].tolist()
        return chosen

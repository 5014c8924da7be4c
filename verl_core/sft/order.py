"""Which rows a step learns. Invariant: a function of (seed, epoch) and nothing else, so a resumed run goes on where it
stopped; an epoch has every row once, its last batch may be smaller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """Attributes:
    rows: of the set.
    batch_size: rows per step.
    shuffle: else file order.
    """

    rows: int
    batch_size: int
    shuffle: bool
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last one included."""
        return -(-self.rows // self.batch_size)

    def epoch_of(self, step: int) -> int:
        """Epoch of global step `step` (1, 2, ...), from 0."""
        return (step - 1) // self.steps_per_epoch

    def rows_of(self, step: int) -> list[int]:
        """Rows of global step `step`."""
        epoch, index = divmod(step - 1, self.steps_per_epoch)
        generator, every = np.random.default_rng([self.seed, epoch]), np.arange(self.rows)
        order = generator.permutation(every) if self.shuffle else every
        chosen: list[int] = order[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        return chosen

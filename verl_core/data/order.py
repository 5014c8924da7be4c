"""The order of serving. Invariant: the row behind an ordinal is a function of (seed, number of rows, batch size) alone.

An epoch serves each row at most once, in whole batches: the rows behind the last whole batch are left out of that
epoch, others in the next. The order within an epoch sorts the rows by a stream of random words; numpy promises that the
stream of a bit generator never changes, which it does not promise for `permutation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from verl_core.errors import DataError

Rows = NDArray[np.int64]


def epoch_order(rows: int, seed: int | Sequence[int], epoch: int) -> Rows:
    """int64 [rows]: a permutation of 0..rows-1 for (seed, epoch).

    Args:
        seed: several numbers keep the stream apart from others that are drawn with the first one.
    """
    parts = [seed] if isinstance(seed, int) else list(seed)
    words = np.random.PCG64(np.random.SeedSequence([*parts, epoch])).random_raw(rows)
    return np.argsort(words, kind="stable").astype(np.int64)


class EpochOrders:
    """The order of each epoch, made once while that epoch lasts.

    Args:
        rows: of the set.
        seed: as of `epoch_order`.
        shuffle: False = file order in every epoch.
    """

    def __init__(self, rows: int, seed: int | Sequence[int], shuffle: bool = True) -> None:
        self._rows, self._seed, self._shuffle = rows, seed, shuffle
        self._epoch, self._order = -1, np.arange(rows, dtype=np.int64)

    def of(self, epoch: int) -> Rows:
        """int64 [rows]: the rows of `epoch` (from 0) in their order."""
        if self._shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self._rows, self._seed, epoch)
        return self._order


def rows_per_epoch(rows: int, batch_size: int) -> int:
    """Rows of the whole batches of an epoch. Raises DataError: there is none."""
    if rows < batch_size:
        raise DataError(f"{rows} rows do not fill one batch of {batch_size}; add rows or lower data.train_batch_size")
    return rows // batch_size * batch_size


class ServingOrder:
    """Ordinal -> (epoch, row).

    Args:
        rows: of the dataset.
        batch_size: prompts of a step; an epoch is a whole number of them.
        shuffle: False = file order in every epoch.

    Raises:
        DataError: the rows do not fill one batch.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, shuffle: bool) -> None:
        self.per_epoch = rows_per_epoch(rows, batch_size)
        self._orders = EpochOrders(rows, seed, shuffle)

    def row_of(self, ordinal: int) -> int:
        """Position of the row that is served as number `ordinal` (from 0, over all epochs)."""
        epoch, place = divmod(ordinal, self.per_epoch)
        return int(self._orders.of(epoch)[place])

    def epoch_of(self, ordinal: int) -> int:
        """Epoch that the ordinal belongs to."""
        return ordinal // self.per_epoch

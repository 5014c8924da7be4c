"""`one_digit_sums`: the hundred sums `a+b=` of one-digit numbers. Invariant: a function of the settings alone.

`config: {holdout: k}` keeps k of the hundred pairs out of training; validation then asks only those. With holdout 0
(the default) both draw from all pairs: the task then shows learning, not generalization.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verl_core.config.schema import PrepareConfig
from verl_core.data.order import epoch_order
from verl_core.data.record import record
from verl_core.errors import DataError

NAME = "one_digit_sums"
PAIRS = tuple((a, b) for a in range(10) for b in range(10))
_TRAIN_DRAW = 1  # number of the random stream that draws training rows; 0 decides which pairs are held out


def digit_sum_rows(config: PrepareConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training rows drawn with repetition, validation rows without, in a seeded order.

    Raises:
        DataError: unknown setting, holdout out of range, or more validation rows than pairs.
    """
    if unknown := set(config.config) - {"holdout"}:
        raise DataError(f"data.prepare.config: {NAME} has no setting {sorted(unknown)[0]!r}; it has holdout")
    holdout = config.config.get("holdout", 0)
    if type(holdout) is not int or not 0 <= holdout < len(PAIRS):
        raise DataError(f"data.prepare.config.holdout: must be a whole number from 0 to 99, got {holdout!r}")
    shuffled = [PAIRS[place] for place in epoch_order(len(PAIRS), config.seed, epoch=0)]
    held_out, seen = shuffled[:holdout], shuffled[holdout:]
    asked = held_out or shuffled
    if config.val_size > len(asked):
        raise DataError(f"data.prepare.val_size: {NAME} has {len(asked)} pairs to validate on, not {config.val_size}")
    drawn = np.random.PCG64(np.random.SeedSequence([config.seed, _TRAIN_DRAW])).random_raw(config.train_size)
    train = [seen[int(word % len(seen))] for word in drawn]
    return _rows(config, train, "train"), _rows(config, asked[: config.val_size], "val")


def _rows(config: PrepareConfig, pairs: list[tuple[int, int]], split: str) -> list[dict[str, Any]]:
    return [record(config, f"{a}+{b}=", str(a + b), NAME, split, index) for index, (a, b) in enumerate(pairs)]

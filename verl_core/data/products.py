"""`calculator`: products of two two-digit numbers, which a tiny policy cannot know and a tool can. Invariant: rows
are a function of the settings alone, and no pair is in both splits.

`extra_info.entry` is a demonstration for a warm start: the call that helps, and what the tool answers.
"""

from __future__ import annotations

import json
from typing import Any

from verl_core.config.schema import PrepareConfig
from verl_core.data.order import epoch_order
from verl_core.data.record import record
from verl_core.errors import DataError

NAME = "calculator"
PAIRS = tuple((a, b) for a in range(10, 100) for b in range(10, 100))


def product_rows(config: PrepareConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Validation rows first, then training rows, from a seeded shuffle of the 8,100 pairs.

    Raises:
        DataError: a setting, or more rows than pairs.
    """
    if config.config:
        raise DataError(f"data.prepare.config: {NAME} has no setting {sorted(config.config)[0]!r}; it has none")
    need = config.train_size + config.val_size
    if need > len(PAIRS):
        raise DataError(f"{NAME} has {len(PAIRS)} pairs; data.prepare.train_size + val_size ask for {need}")
    drawn = [PAIRS[place] for place in epoch_order(len(PAIRS), config.seed, epoch=0)[:need]]
    val, train = drawn[: config.val_size], drawn[config.val_size :]
    return _rows(config, train, "train"), _rows(config, val, "val")


def _rows(config: PrepareConfig, pairs: list[tuple[int, int]], split: str) -> list[dict[str, Any]]:
    return [_row(config, a, b, split, index) for index, (a, b) in enumerate(pairs)]


def _row(config: PrepareConfig, a: int, b: int, split: str, index: int) -> dict[str, Any]:
    call = {"name": "calc", "arguments": {"e": f"{a}*{b}"}}
    entry = json.dumps({"call": call, "result": str(a * b)})
    return record(config, f"{a}*{b}=", str(a * b), NAME, split, index, entry)

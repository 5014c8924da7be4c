"""Rows from a `reasoning-gym` task. Invariant: a row carries all that the task's scorer needs, as JSON.

`extra_info.entry` is the entry (question, answer, metadata), `extra_info.config` the task's settings, both JSON text:
metadata has another shape in every task, which parquet's typed columns could not hold.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from verl_core.config.schema import PrepareConfig
from verl_core.data.record import record
from verl_core.errors import DataError


def gym_rows(config: PrepareConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first train_size entries for training, the next val_size for validation.

    Raises:
        DataError: unknown task, a setting that the task refuses, or an entry that is not JSON.
    """
    dataset = _dataset(config)
    rows = []
    for place in range(config.train_size + config.val_size):
        in_train = place < config.train_size
        split, index = ("train", place) if in_train else ("val", place - config.train_size)
        rows.append(_row(config, dataset[place], split, index))
    return rows[: config.train_size], rows[config.train_size :]


def _row(config: PrepareConfig, entry: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    try:
        text = json.dumps({name: entry[name] for name in ("question", "answer", "metadata")}, ensure_ascii=False)
    except TypeError as error:
        raise DataError(f"reasoning-gym task {config.task}: an entry cannot be stored as JSON: {error}") from error
    answer = None if entry["answer"] is None else str(entry["answer"])
    settings = json.dumps(config.config, sort_keys=True)
    return record(config, entry["question"], answer, f"reasoning_gym/{config.task}", split, index, text, settings)


def _dataset(config: PrepareConfig) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if config.task not in DATASETS:
        near = difflib.get_close_matches(config.task, ["one_digit_sums", "calculator", *DATASETS], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(sorted(DATASETS))}"
        raise DataError(f"data.prepare.task: reasoning-gym has no task {config.task!r}; {hint}")
    if taken := {"seed", "size"} & set(config.config):
        raise DataError(
            f"data.prepare.config.{sorted(taken)[0]}: use data.prepare.seed, train_size and val_size instead"
        )
    try:
        return create_dataset(config.task, seed=config.seed, size=config.train_size + config.val_size, **config.config)
    except (TypeError, ValueError, AssertionError) as error:  # how its tasks refuse their settings
        raise DataError(
            f"data.prepare.config: reasoning-gym task {config.task} refuses {config.config}: {error}"
        ) from error

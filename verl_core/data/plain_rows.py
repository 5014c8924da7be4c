"""Rows from a file of questions and answers. Invariant: no question is in both splits.

`config: {question_key, answer_key}` names the file's columns (default `question` and `answer`).
"""

from __future__ import annotations

from typing import Any

from verl_core.config.schema import PrepareConfig
from verl_core.data.order import epoch_order
from verl_core.data.reader import records_of
from verl_core.data.record import record
from verl_core.errors import DataError


def plain_rows(config: PrepareConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Validation rows first, then training rows, from a seeded shuffle of the distinct questions.

    Raises:
        DataError: file, column or answer missing, empty question, or fewer questions than rows asked for.
    """
    if unknown := set(config.config) - {"question_key", "answer_key"}:
        raise DataError(
            f"data.prepare.config: a file has no setting {sorted(unknown)[0]!r}; it has question_key and answer_key"
        )
    question_key = config.config.get("question_key", "question")
    answer_key = config.config.get("answer_key", "answer")
    found: dict[str, str] = {}
    for place, row in records_of(config.file, (question_key, answer_key)):
        question, answer = _cell(row, question_key, place), _cell(row, answer_key, place)
        if found.setdefault(question, answer) != answer:
            raise DataError(f"{place}, column {question_key}: the question is there already, with another answer")
    need = config.train_size + config.val_size
    if need > len(found):
        raise DataError(
            f"{config.file} has {len(found)} distinct questions; data.prepare.train_size + val_size ask for {need}"
        )
    pairs = list(found.items())
    drawn = [pairs[place] for place in epoch_order(len(pairs), config.seed, epoch=0)]
    val, train = drawn[: config.val_size], drawn[config.val_size : need]
    return _rows(config, train, "train"), _rows(config, val, "val")


def _cell(row: dict[str, Any], column: str, place: str) -> str:
    value = row.get(column)
    text = "" if value is None else str(value).strip()
    if not text:
        raise DataError(f"{place}, column {column}: {'is missing' if column not in row else 'is empty'}")
    return text


def _rows(config: PrepareConfig, pairs: list[tuple[str, str]], split: str) -> list[dict[str, Any]]:
    return [record(config, question, answer, "", split, index) for index, (question, answer) in enumerate(pairs)]

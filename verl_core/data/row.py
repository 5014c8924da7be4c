"""DatasetRow: one checked row of a data file. Invariant: a row that exists can be tokenized and scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_core.errors import DataError
from verl_core.trajectory import Int32


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One row as verl writes them.

    Attributes:
        row: position over all files of the set, from 0.
        place: file and position in it, for messages.
        messages: the chat; every entry has `role` and `content`, both text.
        ground_truth: any JSON value, null included (some verifiers need only extra_info).
    """

    row: int
    place: str
    messages: list[dict[str, Any]]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A row with its prompt tokens: int32 [P], from the chat template, once."""

    source: DatasetRow
    token_ids: Int32

    @property
    def data_source(self) -> str:
        """Picks the verifier."""
        return self.source.data_source


@dataclass(frozen=True)
class Columns:
    """Names of the columns that may be renamed (data.prompt_key, data.reward_fn_key)."""

    prompt: str = "prompt"
    data_source: str = "data_source"


def checked_row(record: Mapping[str, Any], row: int, place: str, columns: Columns) -> DatasetRow:
    """The row of a record.

    Raises:
        DataError: names file, row and column, and what was expected there.
    """
    source = present(record, columns.data_source, place)
    if not isinstance(source, str) or not source:
        raise DataError(f"{place}, column {columns.data_source}: expected the name of a verifier, got {source!r}")
    reward = present(record, "reward_model", place)
    if not isinstance(reward, Mapping) or "ground_truth" not in reward:
        raise DataError(f"{place}, column reward_model: expected a struct with ground_truth, got {_short(reward)}")
    extra = record.get("extra_info")
    if extra is not None and not isinstance(extra, Mapping):
        raise DataError(f"{place}, column extra_info: expected a struct or null, got {_short(extra)}")
    messages = checked_messages(present(record, columns.prompt, place), f"{place}, column {columns.prompt}")
    return DatasetRow(row, place, messages, source, reward["ground_truth"], dict(extra or {}))


def present(record: Mapping[str, Any], column: str, place: str) -> Any:
    """The column's value. Raises DataError: it is missing or null."""
    if record.get(column) is None:
        has = ", ".join(map(str, record)) or "no column"
        raise DataError(
            f"{place}, column {column}: {'is null' if column in record else f'is missing; the row has {has}'}"
        )
    return record[column]


def checked_messages(prompt: Any, place: str) -> list[dict[str, Any]]:
    """The chat without the nulls that parquet puts where one message has a field and another has not.

    Raises:
        DataError: not a list of messages with role and content, or all of them are empty.
    """
    if not isinstance(prompt, list):
        raise DataError(f"{place}: expected chat messages [{{role, content}}, ...], got {_short(prompt)}")
    messages = []
    for entry in prompt:
        if not isinstance(entry, Mapping):
            raise DataError(f"{place}: expected chat messages {{role, content}}, got {_short(entry)}")
        if not isinstance(entry.get("role"), str) or not isinstance(entry.get("content"), str):
            raise DataError(f"{place}: a message needs role and content, both text, got {_short(dict(entry))}")
        messages.append({name: value for name, value in entry.items() if value is not None})
    if not any(message["content"].strip() for message in messages):
        raise DataError(f"{place}: the prompt is empty; fill it or delete the row")
    return messages


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."

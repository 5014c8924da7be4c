"""Reading data files: parquet and JSONL, in verl's columns. Invariant: every error names file, row and column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl_core.data.row import Columns, DatasetRow, checked_row
from verl_core.errors import DataError

_PARQUET, _JSONL = (".parquet", ".pq"), (".jsonl", ".ndjson")
_BATCH = 4096  # parquet rows turned into Python values at a time


def read_rows(files: Sequence[str], columns: Columns | None = None, max_rows: int = -1) -> list[DatasetRow]:
    """All rows of the files, in order; `max_rows` keeps the first ones, -1 all.

    Raises:
        DataError: a file is missing or unreadable, a column is missing, or a row is malformed.
    """
    named = columns or Columns()
    rows: list[DatasetRow] = []
    for file in files:
        for place, record in records_of(file, (named.prompt, named.data_source, "reward_model")):
            rows.append(checked_row(record, len(rows), place, named))
            if len(rows) == max_rows:
                return rows
    if not rows:
        raise DataError(f"no rows in {', '.join(files) or 'an empty list of files'}")
    return rows


def records_of(file: str, required: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) of every row of a parquet or JSONL file. `required` columns are looked for before any row is read
    (parquet; JSONL has no columns, there each row is its own)."""
    path = Path(file)
    if not path.is_file():
        raise DataError(f"{file}: no such file; check data.train_files, data.val_files or data.prepare.file")
    if path.suffix in _PARQUET:
        yield from _parquet(path, required)
    elif path.suffix in _JSONL:
        yield from _jsonl(path)
    else:
        raise DataError(f"{file}: unknown kind of file {path.suffix!r}; use {', '.join((*_PARQUET, *_JSONL))}")


def _parquet(path: Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with pq.ParquetFile(path) as table:
            missing = [column for column in required if column not in table.schema_arrow.names]
            if missing:
                has = ", ".join(table.schema_arrow.names)
                raise DataError(f"{path}: column {missing[0]} is missing; the file has {has}")
            row = 0
            for batch in table.iter_batches(batch_size=_BATCH):
                for record in batch.to_pylist():
                    yield f"{path}, row {row}", record
                    row += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    row = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            yield f"{path}, row {row}", _object(line, f"{path}, row {row}")
            row += 1


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: expected an object with the columns as names, got {type(record).__name__}")
    return record

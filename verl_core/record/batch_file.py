"""batch.safetensors: output of the advantage stage, the whole TrainBatch. Invariant: its row order is part of the file,
and a
file whose keys and order mark disagree is refused: columns may never meet rows of another order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_core.batch import TrainBatch
from verl_core.errors import RecordError
from verl_core.record.canonical import compact
from verl_core.record.rundir import Published, RunDir

NAME = "batch.safetensors"
FORMAT = "verl-flyte train batch 1"

_ARRAYS = (
    "sessions",
    "prompt_ids",
    "prompt_offsets",
    "response_ids",
    "response_offsets",
    "response_mask",
    "scores",
)
_COLUMN = "column."
_ROWS = "rows"


def row_order(keys: Sequence[str]) -> str:
    """Hex sha256 of the keys in order: equal exactly when rows and their order are equal."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def write_batch(rundir: RunDir, step: int, batch: TrainBatch) -> Published:
    """Publish the training batch of a step: ids, mask, scores and every column."""
    return rundir.publish_bytes(f"{rundir.step_dir(step)}/{NAME}", pack_batch(batch))


def read_batch(rundir: RunDir, step: int, sha256: str = "") -> TrainBatch:
    """Inverse of `write_batch`. Raises RecordError: missing, damaged, or other bytes than `sha256` says."""
    path = f"{rundir.step_dir(step)}/{NAME}"
    return unpack_batch(rundir.read(path, sha256), rundir.url(path))


def pack_batch(batch: TrainBatch) -> bytes:
    """Safetensors bytes of `batch`; dtypes as in TrainBatch."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {name: np.ascontiguousarray(getattr(batch, name)) for name in _ARRAYS}
    arrays |= {_COLUMN + name: np.ascontiguousarray(values) for name, values in batch.columns.items()}
    rows = {"format": FORMAT, "row_order": row_order(batch.keys), "keys": batch.keys, "uids": batch.uids}
    # One metadata entry: safetensors writes several in random order, and equal batches must give equal bytes.
    data: bytes = save(arrays, metadata={_ROWS: compact(rows).decode()})
    return data


def unpack_batch(data: bytes, name: str = NAME) -> TrainBatch:
    """Inverse of `pack_batch`; arrays may be changed by the caller."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays, metadata = load(data), _metadata(data)
    except (SafetensorError, ValueError) as error:
        raise RecordError(f"{name} is not a whole safetensors file: {error}") from error
    rows: dict[str, Any] = json.loads(metadata.get(_ROWS, "{}"))
    if rows.get("format") != FORMAT:
        raise RecordError(f"{name} is not a training batch of this version ({rows.get('format')!r}, need {FORMAT!r})")
    if row_order(rows["keys"]) != rows["row_order"] or len(rows["keys"]) != len(arrays["scores"]):
        raise RecordError(f"{name}: the order of its rows is not the one its columns were written in")
    columns = {key.removeprefix(_COLUMN): np.array(arrays[key]) for key in sorted(arrays) if key.startswith(_COLUMN)}
    fields = {key: np.array(arrays[key]) for key in _ARRAYS}
    return TrainBatch(keys=rows["keys"], uids=rows["uids"], columns=columns, **fields)


def _metadata(data: bytes) -> dict[str, str]:
    """Metadata of a safetensors file: 8 bytes of header length, then JSON (the format's documentation)."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(data[8 : 8 + length])
    return header.get("__metadata__", {})

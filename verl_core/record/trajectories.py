"""trajectories.parquet: output of the rollout stage. Invariant: rows come back equal, bit for bit, in the order
given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verl_core.batch import offsets_of
from verl_core.record.canonical import plain
from verl_core.record.parquet import table_bytes, table_from
from verl_core.record.rundir import Published, RunDir
from verl_core.trajectory import Segment, Trajectory

NAME = "trajectories.parquet"

_SEGMENT = pa.struct([pa.field("weight_version", pa.int32()), pa.field("length", pa.int32())])
SCHEMA = pa.schema(
    [
        ("uid", pa.string()),
        ("session", pa.int32()),
        ("index", pa.int32()),
        ("ordinal", pa.int64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.bool_())),
        ("rollout_log_probs", pa.list_(pa.float32())),
        ("segments", pa.list_(_SEGMENT)),
        ("stop_reason", pa.string()),
        ("data_source", pa.string()),
        ("num_turns", pa.int32()),
        ("extra", pa.string()),
    ]
)


def write_trajectories(rundir: RunDir, step: int, rows: Sequence[Trajectory]) -> Published:
    """Publish the trajectories of a step; `extra` is kept as JSON."""
    return rundir.publish_bytes(f"{rundir.step_dir(step)}/{NAME}", pack_trajectories(rows))


def read_trajectories(rundir: RunDir, step: int, sha256: str = "") -> list[Trajectory]:
    """Inverse of `write_trajectories`. Raises RecordError: missing, damaged, or other bytes than `sha256` says."""
    path = f"{rundir.step_dir(step)}/{NAME}"
    return unpack_trajectories(rundir.read(path, sha256), rundir.url(path))


def pack_trajectories(rows: Sequence[Trajectory]) -> bytes:
    """Parquet bytes of `rows`."""
    segments = list(chain.from_iterable(row.segments for row in rows))
    columns = {
        "uid": [row.uid for row in rows],
        "session": [row.session for row in rows],
        "index": [row.index for row in rows],
        "ordinal": [row.ordinal for row in rows],
        "prompt_ids": _ragged([row.prompt_ids for row in rows], np.int32),
        "response_ids": _ragged([row.response_ids for row in rows], np.int32),
        "response_mask": _ragged([row.response_mask for row in rows], np.bool_),
        "rollout_log_probs": _ragged([row.rollout_log_probs for row in rows], np.float32),
        "segments": pa.ListArray.from_arrays(
            pa.array(offsets_of([len(row.segments) for row in rows]).astype(np.int32)),
            pa.StructArray.from_arrays(
                [
                    pa.array([part.weight_version for part in segments], pa.int32()),
                    pa.array([part.length for part in segments], pa.int32()),
                ],
                fields=list(_SEGMENT),
            ),
        ),
        "stop_reason": [row.stop_reason for row in rows],
        "data_source": [row.data_source for row in rows],
        "num_turns": [row.num_turns for row in rows],
        "extra": [json.dumps(plain(row.extra), sort_keys=True) if row.extra else "{}" for row in rows],
    }
    return table_bytes(pa.table(columns, schema=SCHEMA))


def unpack_trajectories(data: bytes, name: str = NAME) -> list[Trajectory]:
    """Inverse of `pack_trajectories`; arrays are views of one buffer per column."""
    table = table_from(data, SCHEMA, name).combine_chunks()
    scalar = {field: table[field].to_pylist() for field in ("uid", "session", "index", "ordinal", "extra")}
    scalar |= {field: table[field].to_pylist() for field in ("stop_reason", "data_source", "num_turns")}
    ragged = {
        field: _split(table[field]) for field in ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs")
    }
    segments = _segments(table["segments"])
    return [
        Trajectory(
            **{field: values[row] for field, values in (scalar | ragged).items() if field != "extra"},
            segments=segments[row],
            extra={} if scalar["extra"][row] == "{}" else json.loads(scalar["extra"][row]),
        )
        for row in range(table.num_rows)
    ]


def _ragged(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> pa.ListArray:
    flat = np.concatenate(parts) if parts else np.empty(0, dtype)
    return pa.ListArray.from_arrays(
        pa.array(offsets_of([len(part) for part in parts]).astype(np.int32)), pa.array(flat)
    )


def _flat(column: pa.ChunkedArray) -> tuple[pa.Array, NDArray[np.int64]]:
    """(values, offsets) of a list column of one chunk."""
    lists = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return lists.values, lists.offsets.to_numpy().astype(np.int64)


def _split(column: pa.ChunkedArray) -> list[NDArray[Any]]:
    values, offsets = _flat(column)
    flat = values.to_numpy(zero_copy_only=False)
    return [flat[start:end] for start, end in pairwise(offsets)]


def _segments(column: pa.ChunkedArray) -> list[tuple[Segment, ...]]:
    values, offsets = _flat(column)
    versions, lengths = (values.field(name).to_pylist() for name in ("weight_version", "length"))
    parts = [Segment(version, length) for version, length in zip(versions, lengths, strict=True)]
    return [tuple(parts[start:end]) for start, end in pairwise(offsets)]

"""Trajectories as one `bytes` value. Invariant: what unpacks is bit for bit what was packed, or `StoreError` says why
not.

TransferQueue charges per value moved, not per byte (measured: about 0.1 ms each), so everything of a trajectory, or
of all the trajectories of a session, travels as one value. Little-endian throughout:

    header   magic, format version, count, CRC of the schema text, CRC of count and body, body length
    body     per trajectory: a fixed record of lengths and scalars, then the columns of SCHEMA, padded to 8 bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_core.errors import StoreError
from verl_core.trajectory import Segment, StopReason, Trajectory

MAGIC = b"VFTJ"
FORMAT_VERSION = 1
SCHEMA = (
    ("segments", "<i4 [S, 2] weight_version, length"),
    ("prompt_ids", "<i4 [P]"),
    ("response_ids", "<i4 [R]"),
    ("rollout_log_probs", "<f4 [R]"),
    ("response_mask", "bool [R]"),
    ("uid", "utf-8"),
    ("data_source", "utf-8"),
    ("extra", "json"),
)
SCHEMA_CRC = zlib.crc32(repr(SCHEMA).encode())
HEADER = struct.Struct("<4sH2xIII4xQ")
# ordinal; session, index, P, R, S, num_turns, bytes of extra; bytes of uid and of data_source; stop reason
_RECORD = struct.Struct("<qIIIIIIIHHB7x")
_STOP_REASONS: tuple[StopReason, ...] = ("stop", "length", "abort", "error")
_ARRAYS: dict[str, type[np.generic]] = {
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "rollout_log_probs": np.float32,
    "response_mask": np.bool_,
}
_NO_EXTRA = b"{}"


def pack(trajectories: Sequence[Trajectory]) -> bytes:
    """One blob of all `trajectories`, in their order.

    Raises:
        StoreError: a column has another dtype or length than `Trajectory` promises, or `extra` is not JSON.
    """
    body = b"".join(part for row in trajectories for part in _parts(row))
    header = HEADER.pack(
        MAGIC, FORMAT_VERSION, len(trajectories), SCHEMA_CRC, zlib.crc32(body, len(trajectories)), len(body)
    )
    return header + body


def unpack(blob: bytes) -> list[Trajectory]:
    """Inverse of `pack`. Arrays are read-only views of `blob`.

    Raises:
        StoreError: not a blob of this format and schema, or damaged on the way.
    """
    if len(blob) < HEADER.size:
        raise StoreError(f"a stored row has {len(blob)} bytes, less than its header; it was cut off")
    magic, version, count, schema, crc, length = HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise StoreError(f"a stored row starts with {magic!r}, not {MAGIC!r}; something else wrote it")
    if (version, schema) != (FORMAT_VERSION, SCHEMA_CRC):
        raise StoreError(
            f"a stored row has format {version} and schema {schema:08x}, this process reads format {FORMAT_VERSION} "
            f"and schema {SCHEMA_CRC:08x}; run the same verl-flyte version in every process of the run"
        )
    if len(blob) != HEADER.size + length:
        raise StoreError(f"a stored row has {len(blob)} bytes, its header says {HEADER.size + length}; it was cut off")
    if zlib.crc32(memoryview(blob)[HEADER.size :], count) != crc:
        raise StoreError("the checksum of a stored row does not match its bytes; it was damaged on the way")
    rows, at = [], HEADER.size
    for _ in range(count):
        row, at = _read(blob, at)
        rows.append(row)
    return rows


def _parts(row: Trajectory) -> list[Any]:
    """Buffers of one trajectory, ready to be joined."""
    _check(row)
    uid, source, extra = row.uid.encode(), row.data_source.encode(), _json(row)
    record = _RECORD.pack(
        row.ordinal,
        row.session,
        row.index,
        len(row.prompt_ids),
        len(row.response_ids),
        len(row.segments),
        row.num_turns,
        len(extra),
        len(uid),
        len(source),
        _STOP_REASONS.index(row.stop_reason),
    )
    pairs = [number for segment in row.segments for number in (segment.weight_version, segment.length)]
    columns = [np.ascontiguousarray(getattr(row, name)) for name in _ARRAYS]
    size = 8 * len(row.segments) + sum(column.nbytes for column in columns) + len(uid) + len(source) + len(extra)
    return [record, struct.pack(f"<{len(pairs)}i", *pairs), *columns, uid, source, extra, bytes(-size % 8)]


def _check(row: Trajectory) -> None:
    """Raise unless dtypes and lengths are what `Trajectory` promises: the reader could not tell."""
    for name, dtype in _ARRAYS.items():
        column: NDArray[Any] = getattr(row, name)
        if column.dtype != dtype or column.ndim != 1:
            raise StoreError(
                f"trajectory {row.key}: {name} must be {np.dtype(dtype).name} with one axis, "
                f"got {column.dtype.name} {column.shape}"
            )
    length = len(row.response_ids)
    lengths = (len(row.response_mask), len(row.rollout_log_probs), sum(segment.length for segment in row.segments))
    if lengths != (length, length, length):
        raise StoreError(
            f"trajectory {row.key}: {length} response ids, but mask, log-probs and segments cover {lengths} tokens"
        )


def _json(row: Trajectory) -> bytes:
    if not row.extra:
        return _NO_EXTRA
    try:
        return json.dumps(row.extra).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(f"trajectory {row.key}: `extra` must be plain JSON values: {error}") from error


def _read(blob: bytes, at: int) -> tuple[Trajectory, int]:
    """The trajectory whose record starts at `at`, and where the next one starts."""
    start = at
    ordinal, session, index, prompt, response, segments, turns, n_extra, n_uid, n_source, stop = _RECORD.unpack_from(
        blob, at
    )
    at += _RECORD.size
    pairs = struct.unpack_from(f"<{2 * segments}i", blob, at)
    at += 8 * segments
    prompt_ids = np.frombuffer(blob, np.int32, prompt, at)
    response_ids = np.frombuffer(blob, np.int32, response, at + 4 * prompt)
    log_probs = np.frombuffer(blob, np.float32, response, at + 4 * (prompt + response))
    at += 4 * (prompt + 2 * response)
    mask = np.frombuffer(blob, np.bool_, response, at)
    at += response
    uid, source = blob[at : at + n_uid].decode(), blob[at + n_uid : at + n_uid + n_source].decode()
    at += n_uid + n_source
    extra = blob[at : at + n_extra]
    at += n_extra
    row = Trajectory(
        uid=uid,
        session=session,
        index=index,
        ordinal=ordinal,
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        response_mask=mask,
        rollout_log_probs=log_probs,
        segments=tuple(Segment(pairs[i], pairs[i + 1]) for i in range(0, 2 * segments, 2)),
        stop_reason=_STOP_REASONS[stop],
        data_source=source,
        num_turns=turns,
        extra={} if extra == _NO_EXTRA else json.loads(extra),
    )
    return row, at + (start - at) % 8

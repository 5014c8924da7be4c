"""Trajectories as one `bytes` value. Invariant: what unpacks is bit for bit what was packed, or `StoreError` says why
not.

TransferQueue charges per value moved and per key, not per byte (measured: about 0.1 ms and 0.02 ms), so everything of a
group travels as one value. Little-endian throughout:

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
_SEGMENT = struct.Struct("<ii")
_STOP_REASONS: tuple[StopReason, ...] = ("stop", "length", "abort", "error")
_STOP_NUMBERS = {reason: number for number, reason in enumerate(_STOP_REASONS)}
_INT32, _FLOAT32, _BOOL = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)
_NO_EXTRA = b"{}"
_PADDING = [bytes(count) for count in range(8)]


def pack(trajectories: Sequence[Trajectory]) -> bytearray:
    """One blob of all `trajectories`, in their order; a bytearray, so that the header can be filled in without a copy.

    Raises:
        StoreError: a column has another dtype or length than `Trajectory` promises, or `extra` is not JSON.
    """
    blob = bytearray().join([bytes(HEADER.size), *[part for row in trajectories for part in _parts(row)]])
    crc = zlib.crc32(memoryview(blob)[HEADER.size :], len(trajectories))
    HEADER.pack_into(blob, 0, MAGIC, FORMAT_VERSION, len(trajectories), SCHEMA_CRC, crc, len(blob) - HEADER.size)
    return blob


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
    """The buffers of one trajectory, altogether a multiple of 8 bytes; they are copied once, by whoever joins them."""
    _check(row)
    uid, source = row.uid.encode(), row.data_source.encode()
    extra = _json(row) if row.extra else _NO_EXTRA
    prompt, response, segments = len(row.prompt_ids), len(row.response_ids), len(row.segments)
    record = _RECORD.pack(
        row.ordinal,
        row.session,
        row.index,
        prompt,
        response,
        segments,
        row.num_turns,
        len(extra),
        len(uid),
        len(source),
        _STOP_NUMBERS[row.stop_reason],
    )
    odd = response + len(uid) + len(source) + len(extra) + 4 * prompt
    return [
        record,
        *[_SEGMENT.pack(segment.weight_version, segment.length) for segment in row.segments],
        np.ascontiguousarray(row.prompt_ids),
        np.ascontiguousarray(row.response_ids),
        np.ascontiguousarray(row.rollout_log_probs),
        np.ascontiguousarray(row.response_mask),
        uid,
        source,
        extra,
        _PADDING[-odd % 8],
    ]


def _check(row: Trajectory) -> None:
    """Raise unless dtypes and lengths are what `Trajectory` promises: the reader could not tell."""
    prompt, response, mask, log_probs = row.prompt_ids, row.response_ids, row.response_mask, row.rollout_log_probs
    if not (
        prompt.dtype == response.dtype == _INT32
        and mask.dtype == _BOOL
        and log_probs.dtype == _FLOAT32
        and prompt.ndim == response.ndim == mask.ndim == log_probs.ndim == 1
    ):
        columns = ("prompt_ids", prompt), ("response_ids", response), ("mask", mask), ("log_probs", log_probs)
        found = ", ".join(f"{name} {column.dtype.name} {column.shape}" for name, column in columns)
        raise StoreError(
            f"trajectory {row.key}: ids must be int32, the mask bool and log-probs float32, each with one axis; "
            f"it has {found}"
        )
    covered = (len(mask), len(log_probs), sum([segment.length for segment in row.segments]))
    if covered != (len(response),) * 3:
        raise StoreError(
            f"trajectory {row.key}: {len(response)} response ids, but mask, log-probs and segments "
            f"cover {covered} tokens"
        )


def _json(row: Trajectory) -> bytes:
    try:
        return json.dumps(row.extra).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(f"trajectory {row.key}: `extra` must be plain JSON values: {error}") from error


def _read(blob: bytes, start: int) -> tuple[Trajectory, int]:
    """The trajectory whose record starts at `start`, and where the next one starts."""
    fixed = _RECORD.unpack_from(blob, start)
    ordinal, session, index, prompt, response, segments, turns, n_extra, n_uid, n_source, stop = fixed
    at = start + _RECORD.size
    ids = at + 8 * segments
    log_probs = ids + 4 * (prompt + response)
    mask = log_probs + 4 * response
    uid = mask + response
    source = uid + n_uid
    extra = source + n_source
    end = extra + n_extra
    row = Trajectory(
        uid=blob[uid:source].decode(),
        session=session,
        index=index,
        ordinal=ordinal,
        prompt_ids=np.frombuffer(blob, _INT32, prompt, ids),
        response_ids=np.frombuffer(blob, _INT32, response, ids + 4 * prompt),
        response_mask=np.frombuffer(blob, _BOOL, response, mask),
        rollout_log_probs=np.frombuffer(blob, _FLOAT32, response, log_probs),
        segments=tuple([Segment(*pair) for pair in _SEGMENT.iter_unpack(blob[at:ids])]),
        stop_reason=_STOP_REASONS[stop],
        data_source=blob[source:extra].decode(),
        num_turns=turns,
        extra=json.loads(blob[extra:end]) if n_extra > len(_NO_EXTRA) else {},
    )
    return row, end + (start - end) % 8

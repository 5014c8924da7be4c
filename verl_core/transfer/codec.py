"""Trajectories as one value. Invariant: what unpacks is bit for bit what was packed, or `StoreError` says why not.

TransferQueue charges per value moved and per key, not per byte (measured: about 0.1 ms and 0.02 ms), so everything of a
group travels as one value. Little-endian throughout:

    header   magic, format version, flags, count, CRC of the schema text, CRC, body length
    table    per trajectory eight int64: ordinal, session, index, P, R, S, num_turns, stop reason
    columns  of all trajectories, one column after the other, as SCHEMA says

The CRC, a CRC-32C, is that of version, flags and count, continued over the body. With flag 1 (no tool spoke: every
response mask is True throughout) the masks are left out.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from verl_core.errors import StoreError
from verl_core.trajectory import Segment, StopReason, Trajectory

MAGIC = b"VFTJ"
FORMAT_VERSION = 2
SCHEMA = (
    ("table", "<i8 [count, 8] ordinal session index P R S num_turns stop"),
    ("segments", "<i4 [sum S, 2] weight_version length"),
    ("prompt_ids", "<i4 [sum P]"),
    ("response_ids", "<i4 [sum R]"),
    ("rollout_log_probs", "<f4 [sum R]"),
    ("response_mask", "bool [sum R], nothing with flag 1"),
    ("text", "json [uids, data_sources, extras]; one uid or source may stand for all, no extras for empty ones"),
)
SCHEMA_CRC = zlib.crc32(repr(SCHEMA).encode())
HEADER = struct.Struct("<4sHHIII4xQ")
SEEDED = slice(4, 12)  # the part of the header that the CRC covers
ALL_SAMPLED = 1  # the flag
_LINE = struct.Struct("<8q")
_SEGMENT = struct.Struct("<2i")
_STOP_REASONS: tuple[StopReason, ...] = ("stop", "length", "abort", "error")
_STOP_NUMBERS = {reason: number for number, reason in enumerate(_STOP_REASONS)}
_HOLE = bytes(HEADER.size)
_INT32, _FLOAT32, _BOOL = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_)


def pack(trajectories: Sequence[Trajectory]) -> bytearray:
    """One blob of all `trajectories`, in their order; a bytearray, so that the header is filled in without a copy.

    Raises:
        StoreError: a column has another dtype or length than `Trajectory` promises, or `extra` is not JSON.
    """
    prompts, responses, log_probs, masks = _checked_columns(trajectories)
    sampled = _joined(masks)
    flags = ALL_SAMPLED if sampled == b"\1" * len(sampled) else 0
    body = [_HOLE, _table(trajectories), *prompts, *responses, *log_probs, b"" if flags else sampled]
    body.append(_text(trajectories))
    blob: bytearray = _joined(body, bytearray())
    HEADER.pack_into(blob, 0, MAGIC, FORMAT_VERSION, flags, len(trajectories), SCHEMA_CRC, 0, len(blob) - HEADER.size)
    struct.pack_into("<I", blob, 16, _crc(blob))
    return blob


def _joined(parts: list[Any], empty: Any = b"") -> Any:
    try:
        return empty.join(parts)
    except TypeError:  # a view with strides; to ask every column beforehand would cost as much as the copy
        return empty.join([np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part for part in parts])


def _crc(blob: bytes | bytearray) -> int:
    """CRC-32C, for which processors have an instruction: a third of the time of zlib's."""
    whole = np.frombuffer(blob, np.uint8)  # a memoryview is not taken
    return int(google_crc32c.extend(google_crc32c.value(whole[SEEDED]), whole[HEADER.size :]))


def _table(trajectories: Sequence[Trajectory]) -> bytes:
    """Table and segments."""
    lines = [
        number
        for row in trajectories
        for number in (
            row.ordinal,
            row.session,
            row.index,
            len(row.prompt_ids),
            len(row.response_ids),
            len(row.segments),
            row.num_turns,
            _STOP_NUMBERS[row.stop_reason],
        )
    ]
    parts = [number for row in trajectories for part in row.segments for number in (part.weight_version, part.length)]
    return struct.pack(f"<{len(lines)}q{len(parts)}i", *lines, *parts)


def unpack(blob: bytes) -> list[Trajectory]:
    """Inverse of `pack`. Arrays are views of `blob`, or of a constant, and cannot be written to.

    Raises:
        StoreError: not a blob of this format and schema, or damaged on the way.
    """
    count, flags = _checked_head(blob)
    at_segments = HEADER.size + count * _LINE.size
    lines = list(_LINE.iter_unpack(blob[HEADER.size : at_segments]))
    n_prompt, n_response, n_segment = (sum([line[column] for line in lines]) for column in (3, 4, 5))
    at_prompt = at_segments + n_segment * _SEGMENT.size
    at_response = at_prompt + 4 * n_prompt
    at_mask = at_response + 8 * n_response
    segments = [Segment(*pair) for pair in _SEGMENT.iter_unpack(blob[at_segments:at_prompt])]
    prompts = np.frombuffer(blob, _INT32, n_prompt, at_prompt)
    responses = np.frombuffer(blob, _INT32, n_response, at_response)
    log_probs = np.frombuffer(blob, _FLOAT32, n_response, at_response + 4 * n_response)
    at_text = at_mask if flags & ALL_SAMPLED else at_mask + n_response
    masks = np.frombuffer(b"\1" * n_response if flags & ALL_SAMPLED else blob[at_mask:at_text], _BOOL)
    rows, p, r, s = [], 0, 0, 0
    for line, uid, source, extra in zip(lines, *_texts(blob[at_text:], count), strict=True):
        ordinal, session, index, n_p, n_r, n_s, turns, stop = line
        rows.append(
            Trajectory(  # by position, in the order of its fields: half the time of keywords
                uid,
                session,
                index,
                ordinal,
                prompts[p : p + n_p],
                responses[r : r + n_r],
                masks[r : r + n_r],
                log_probs[r : r + n_r],
                tuple(segments[s : s + n_s]),
                _STOP_REASONS[stop],
                source,
                turns,
                extra,
            )
        )
        p, r, s = p + n_p, r + n_r, s + n_s
    return rows


def _checked_head(blob: bytes) -> tuple[int, int]:
    """How many trajectories the blob holds and its flags, after every check of the header."""
    if len(blob) < HEADER.size:
        raise StoreError(f"a stored value has {len(blob)} bytes, less than its header; it was cut off")
    magic, version, flags, count, schema, crc, length = HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise StoreError(f"a stored value starts with {magic!r}, not {MAGIC!r}; something else wrote it")
    if (version, schema) != (FORMAT_VERSION, SCHEMA_CRC):
        raise StoreError(
            f"a stored value has format {version} and schema {schema:08x}, this process reads format {FORMAT_VERSION} "
            f"and schema {SCHEMA_CRC:08x}; run the same verl-flyte version in every process of the run"
        )
    if len(blob) != HEADER.size + length:
        raise StoreError(
            f"a stored value has {len(blob)} bytes, its header says {HEADER.size + length}; it was cut off"
        )
    if _crc(blob) != crc:
        raise StoreError("the checksum of a stored value does not match its bytes; it was damaged on the way")
    return int(count), int(flags)


def _checked_columns(trajectories: Sequence[Trajectory]) -> list[list[NDArray[Any]]]:
    """Prompts, responses, log-probs and masks, of the dtypes and lengths that `Trajectory` promises: the reader could
    not tell. All at once; which one is wrong, and how, is only looked up when one is."""
    count = len(trajectories)
    prompts, responses = [row.prompt_ids for row in trajectories], [row.response_ids for row in trajectories]
    log_probs, masks = [row.rollout_log_probs for row in trajectories], [row.response_mask for row in trajectories]
    lengths = [column.shape for column in responses]
    covered = [(sum([part.length for part in row.segments]),) for row in trajectories]
    if not (
        [column.dtype for column in (*prompts, *responses)] == [_INT32] * (2 * count)
        and [column.dtype for column in log_probs] == [_FLOAT32] * count
        and [column.dtype for column in masks] == [_BOOL] * count
        and [column.ndim for column in prompts] == [1] * count
        and lengths == covered
        and lengths == [column.shape for column in log_probs]
        and lengths == [column.shape for column in masks]
    ):
        for row in trajectories:
            _check(row)
    return [prompts, responses, log_probs, masks]


def _check(row: Trajectory) -> None:
    """Raise, with what is wrong, unless dtypes and lengths are right."""
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


def _text(trajectories: Sequence[Trajectory]) -> bytes:
    uids, sources = [row.uid for row in trajectories], [row.data_source for row in trajectories]
    extras = [row.extra for row in trajectories]
    try:
        return json.dumps([_folded(uids), _folded(sources), extras if any(extras) else []]).encode()
    except (TypeError, ValueError) as error:
        keys = [row.key for row in trajectories if row.extra]
        raise StoreError(f"trajectories {keys}: `extra` must be plain JSON values: {error}") from error


def _folded(names: list[str]) -> list[str]:
    """One name where all are equal."""
    return names[:1] if names and names.count(names[0]) == len(names) else names


def _texts(text: bytes, count: int) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Inverse of `_text`."""
    uids, sources, extras = json.loads(text)
    return (
        uids if len(uids) == count else uids * count,
        sources if len(sources) == count else sources * count,
        extras or [{} for _ in range(count)],
    )

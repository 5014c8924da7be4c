"""The packed row: bit-exact round trips, and nothing damaged or foreign is ever read."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transfer.build import prompt_of, same, trajectory_of
from verl_core.errors import StoreError
from verl_core.trajectory import Segment, Trajectory
from verl_core.transfer.codec import ALL_SAMPLED, FORMAT_VERSION, HEADER, MAGIC, SCHEMA_CRC, pack, unpack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    lengths = draw(st.lists(st.integers(0, 9), max_size=4))
    length = sum(lengths)
    bits = np.asarray(draw(st.lists(st.integers(0, 2**32 - 1), min_size=length, max_size=length)), dtype=np.uint32)
    return Trajectory(
        uid=draw(st.text("0123456789abcdef", min_size=1, max_size=32)),
        session=draw(st.integers(0, 2**31)),
        index=draw(st.integers(0, 9)),
        ordinal=draw(st.integers(0, 2**40)),
        prompt_ids=np.asarray(draw(st.lists(st.integers(0, 2**31 - 1), max_size=9)), dtype=np.int32),
        response_ids=bits.view(np.int32),
        response_mask=(bits % 2 == 0) | draw(st.booleans()),  # often True throughout
        rollout_log_probs=bits.view(np.float32),  # every bit pattern: NaN, infinities, denormals
        segments=tuple(Segment(draw(st.integers(-1, 2**30)), part) for part in lengths),
        stop_reason=draw(st.sampled_from(["stop", "length", "abort", "error"])),
        data_source=draw(st.text(max_size=9)),
        num_turns=draw(st.integers(0, 99)),
        extra=draw(st.dictionaries(st.text(), JSON, max_size=3)),
    )


@given(st.lists(trajectories(), max_size=4))
def test_what_unpacks_is_what_was_packed(rows: list[Trajectory]) -> None:
    back = unpack(pack(rows))
    assert len(back) == len(rows)
    assert all(same(a, b) for a, b in zip(rows, back, strict=True))


def test_the_bytes_are_the_documented_layout() -> None:
    """Read by hand: header of 32 bytes, 64 of table per trajectory, then column after column."""
    rows = [trajectory_of(prompt_of(4), session, length=3 + session, versions=(6, 7)) for session in (0, 1)]
    blob = pack(rows)
    assert blob[:4] == b"VFTJ"
    assert struct.unpack("<HH", blob[4:8]) == (2, 0)
    assert struct.unpack("<I", blob[8:12]) == (2,)
    assert struct.unpack("<I", blob[16:20]) == (google_crc32c.value(bytes(blob[4:12] + blob[32:])),)
    assert struct.unpack("<Q", blob[24:32]) == (len(blob) - 32,)
    assert struct.unpack("<8q", blob[32:96]) == (4, 0, 0, 3, 3, 2, 2, 0)
    assert struct.unpack("<8q", blob[96:160]) == (4, 1, 0, 3, 4, 2, 2, 0)
    assert struct.unpack("<8i", blob[160:192]) == (6, 1, 7, 2, 6, 1, 7, 3)  # version 6 for one token, 7 for the rest
    assert struct.unpack("<6i", blob[192:216]) == (0, 1, 2, 0, 1, 2)  # the prompts
    assert blob[216:244] == rows[0].response_ids.tobytes() + rows[1].response_ids.tobytes()
    assert blob[244:272] == rows[0].rollout_log_probs.tobytes() + rows[1].rollout_log_probs.tobytes()
    assert blob[272:279] == b"\1\0\1\1\0\1\1"
    assert json.loads(blob[279:]) == [[rows[0].uid], ["sums"], [{}, {"tool": ["calc"], "näme": 1.5}]]


def test_masks_that_are_true_throughout_are_a_flag() -> None:
    """One byte per token less, and the same trajectories; one tool token in one of them, and all masks are written."""
    mixed = [trajectory_of(prompt_of(1), session, length=6) for session in range(3)]
    sampled = [replace(row, response_mask=np.ones(6, dtype=np.bool_)) for row in mixed]
    one_tool = [*sampled[:2], mixed[2]]
    blobs = [pack(rows) for rows in (sampled, one_tool, mixed)]
    assert [struct.unpack("<H", blob[6:8]) for blob in blobs] == [(ALL_SAMPLED,), (0,), (0,)]
    assert len(blobs[1]) - len(blobs[0]) == 18
    for rows, blob in zip((sampled, one_tool, mixed), blobs, strict=True):
        back = unpack(bytes(blob))
        assert all(same(a, b) for a, b in zip(rows, back, strict=True))
        assert not any(row.response_mask.flags.writeable for row in back)


def test_texts_of_rows_that_differ_are_kept_apart() -> None:
    rows = [replace(trajectory_of(prompt_of(i), session=0), data_source=f"source {i}") for i in range(3)]
    assert [(row.uid, row.data_source) for row in unpack(bytes(pack(rows)))] == [(r.uid, r.data_source) for r in rows]
    first, second = unpack(bytes(pack([rows[0], rows[0]])))
    assert (first.uid, first.extra) == (second.uid, second.extra) == (rows[0].uid, {})
    assert first.extra is not second.extra


@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    blob = bytearray(pack([trajectory_of(prompt_of(1), session=1)]))
    spare = {20, 21, 22, 23}  # bytes of the header that mean nothing
    at = data.draw(st.integers(0, len(blob) - 1).filter(lambda at: at not in spare))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StoreError):
        unpack(bytes(blob))


@given(st.integers(0, 10_000))
def test_a_cut_row_is_noticed(length: int) -> None:
    blob = pack([trajectory_of(prompt_of(1), session=0)])
    with pytest.raises(StoreError, match="cut off"):
        unpack(blob[: length % len(blob)])


def test_foreign_bytes_and_other_versions_say_so() -> None:
    blob = pack([trajectory_of(prompt_of(1), session=0)])
    with pytest.raises(StoreError, match="something else wrote it"):
        unpack(b"PAR1" + blob[4:])

    def signed(version: int, schema: int) -> bytes:
        body = bytes(blob[HEADER.size :])
        crc = google_crc32c.value(struct.pack("<HHI", version, 0, 1) + body)
        return HEADER.pack(MAGIC, version, 0, 1, schema, crc, len(body)) + body

    assert signed(FORMAT_VERSION, SCHEMA_CRC) == blob
    for version in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        with pytest.raises(StoreError, match="same verl-flyte version"):
            unpack(signed(version, SCHEMA_CRC))
    with pytest.raises(StoreError, match="schema"):
        unpack(signed(FORMAT_VERSION, SCHEMA_CRC ^ 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": np.zeros(5, dtype=np.int64)}, "ids must be int32.*response_ids int64"),
        ({"rollout_log_probs": np.zeros(5, dtype=np.float64)}, "log-probs float32.*log_probs float64"),
        ({"response_mask": np.ones(5, dtype=np.uint8)}, "the mask bool.*mask uint8"),
        ({"prompt_ids": np.zeros((1, 3), dtype=np.int32)}, "one axis"),
        ({"prompt_ids": np.zeros(3, dtype=">i4")}, "ids must be int32"),
        ({"response_ids": np.zeros((5, 1), dtype=np.int32)}, "one axis"),
        ({"response_mask": np.ones(4, dtype=np.bool_)}, "cover"),
        ({"segments": (Segment(1, 4),)}, "cover"),
        ({"extra": {"tensor": np.zeros(2)}}, "plain JSON"),
    ],
)
def test_a_wrong_column_is_refused_before_it_is_stored(change: dict[str, object], message: str) -> None:
    row = replace(trajectory_of(prompt_of(1), session=0), **change)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=message) as caught:
        pack([trajectory_of(prompt_of(1), session=1), row])
    assert row.key in str(caught.value)


def test_columns_of_a_slice_are_packed_by_value() -> None:
    """A view with strides has the same values as its copy."""
    row = trajectory_of(prompt_of(1), session=0, length=4)
    strided = np.repeat(row.response_ids, 2)[::2]
    assert not strided.flags.c_contiguous
    assert unpack(pack([replace(row, response_ids=strided)]))[0].response_ids.tolist() == row.response_ids.tolist()

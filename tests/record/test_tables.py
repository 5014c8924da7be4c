"""Trajectories, rewards and batches come back from their files as they went in, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record.rows import equal, rewards, trajectories, trajectory
from verl_core.batch import TrainBatch
from verl_core.errors import RecordError
from verl_core.record.batch_file import pack_batch, read_batch, row_order, unpack_batch, write_batch
from verl_core.record.rewards import pack_rewards, read_rewards, unpack_rewards, write_rewards
from verl_core.record.rundir import RunDir
from verl_core.record.trajectories import pack_trajectories, read_trajectories, unpack_trajectories, write_trajectories
from verl_core.trajectory import Reward, Trajectory


@settings(max_examples=40)
@given(st.lists(trajectories(), max_size=5))
def test_trajectories_survive_parquet(rows: list[Trajectory]) -> None:
    back = unpack_trajectories(pack_trajectories(rows))
    assert len(back) == len(rows)
    assert all(equal(a, b) for a, b in zip(rows, back, strict=True))


@settings(max_examples=40)
@given(st.lists(rewards(), max_size=5))
def test_rewards_survive_parquet(rows: list[Reward]) -> None:
    assert unpack_rewards(pack_rewards(rows)) == rows


@settings(max_examples=40)
@given(st.lists(trajectories(), min_size=1, max_size=5), st.integers(0, 2**32))
def test_batch_survives_safetensors(rows: list[Trajectory], seed: int) -> None:
    batch = TrainBatch.from_trajectories(rows, np.random.default_rng(seed).normal(size=len(rows)).tolist())
    batch = batch.with_column("advantages", np.where(batch.response_mask, 0.5, np.nan).astype(np.float32))
    packed = pack_batch(batch)
    assert packed == pack_batch(batch)  # equal batches give equal bytes, so hashes can be compared
    back = unpack_batch(packed)
    assert (back.keys, back.uids, list(back.columns)) == (batch.keys, batch.uids, sorted(batch.columns))
    for name in ("sessions", "prompt_ids", "prompt_offsets", "response_ids", "response_offsets", "response_mask"):
        a, b = getattr(batch, name), getattr(back, name)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    assert back.scores.tolist() == batch.scores.tolist()
    for name, values in batch.columns.items():
        assert back.columns[name].tobytes() == values.tobytes()


def test_stage_files_lie_where_the_layout_says_and_carry_their_hash(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    row = trajectory()
    files = [
        write_trajectories(run, 12, [row]),
        write_rewards(run, 12, [Reward(row.key, 1.0)]),
        write_batch(run, 12, TrainBatch.from_trajectories([row], [1.0])),
    ]
    assert [file.path for file in files] == [
        "steps/000012/trajectories.parquet",
        "steps/000012/rewards.parquet",
        "steps/000012/batch.safetensors",
    ]
    assert equal(read_trajectories(run, 12, files[0].sha256)[0], row)
    assert read_rewards(run, 12, files[1].sha256)[0].score == 1.0
    assert read_batch(run, 12, files[2].sha256).keys == [row.key]
    with pytest.raises(RecordError, match="changed or damaged"):
        read_trajectories(run, 12, files[1].sha256)
    with pytest.raises(RecordError, match="missing"):
        read_rewards(run, 13)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = pack_trajectories([trajectory()])
    with pytest.raises(RecordError, match="not a whole parquet file"):
        unpack_trajectories(whole[:-9])
    with pytest.raises(RecordError, match="other columns"):
        unpack_trajectories(pack_rewards([Reward("a_0_0", 1.0)]))
    batch = pack_batch(TrainBatch.from_trajectories([trajectory(session=0), trajectory(session=1)], [1.0, 0.0]))
    with pytest.raises(RecordError, match="not a whole safetensors file"):
        unpack_batch(batch[:-3])
    swapped = batch.replace(b'\\"ab_0_0\\",\\"ab_1_0\\"', b'\\"ab_1_0\\",\\"ab_0_0\\"')
    assert swapped != batch
    with pytest.raises(RecordError, match="order of its rows"):
        unpack_batch(swapped)


def test_row_order_tells_orders_apart() -> None:
    assert row_order(["a", "b"]) != row_order(["b", "a"])
    assert row_order(["a", "b"]) == row_order(["a", "b"])

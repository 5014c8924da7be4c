"""Finished groups survive a crash in the middle of a step; records are canonical and refuse what they do not know."""

from __future__ import annotations

import json
import math
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record.rows import JSON_OBJECTS, equal, prompt, trajectories, trajectory
from verl_core.errors import RecordError
from verl_core.record.canonical import compact, plain, pretty
from verl_core.record.prompts import prompt_from_json, prompt_to_json
from verl_core.record.rundir import RunDir
from verl_core.record.spool import StepSpool
from verl_core.record.step_record import (
    StepRecord,
    code_version,
    has_step_record,
    read_metrics,
    read_step_record,
    write_metrics,
    write_step_record,
)
from verl_core.trajectory import Trajectory
from verl_core.transfer.flight import Group


def same(left: Group, right: Group) -> bool:
    rows = zip(left.trajectories, right.trajectories, strict=True)
    return (
        prompt_to_json(left.prompt) == prompt_to_json(right.prompt)
        and tuple(left.errors) == tuple(right.errors)
        and all(equal(a, b) for a, b in rows)
    )


@settings(max_examples=30)
@given(st.lists(st.lists(trajectories(), max_size=3), min_size=1, max_size=3), JSON_OBJECTS)
def test_groups_come_back_from_the_spool(parts: list[list[Trajectory]], truth: dict[str, object]) -> None:
    spool = StepSpool(RunDir(f"memory://{uuid.uuid4().hex}"), 3)
    groups = [Group(prompt(f"u{i}", i, ground_truth=truth), rows, ("e",) * i) for i, rows in enumerate(parts)]
    assert spool.read() == []
    spool.append([])
    for group in groups:
        spool.append([group])
    assert all(same(a, b) for a, b in zip(groups, spool.read(), strict=True))


def test_a_torn_spool_keeps_every_group_whose_append_returned(tmp_path: Path) -> None:
    spool = StepSpool(RunDir(tmp_path), 12)
    groups = [Group(prompt(f"u{i}", i), [trajectory(f"u{i}")], ()) for i in range(3)]
    file = tmp_path / spool.path
    ends = []
    for group in groups:
        spool.append([group])
        ends.append(file.stat().st_size)
    whole = file.read_bytes()
    assert spool.path == "steps/000012/spool.bin"
    for length in [*range(0, len(whole), 7), len(whole)]:
        file.write_bytes(whole[:length])
        left = sum(end <= length for end in ends)
        assert [group.prompt.uid for group in spool.read()] == [f"u{i}" for i in range(left)]
    file.write_bytes(whole[: ends[1] + 40])
    with pytest.raises(RecordError, match="has shrunk"):
        spool.append(groups)
    spool = StepSpool(RunDir(tmp_path), 12)  # as the next process does
    spool.append([Group(prompt("new", 9), [trajectory("new")], ())])
    assert [group.prompt.uid for group in spool.read()] == ["u0", "u1", "new"]
    flipped = bytearray(whole)
    flipped[ends[0] + 30] ^= 1
    file.write_bytes(bytes(flipped))
    assert [group.prompt.uid for group in spool.read()] == ["u0"]
    spool.remove()
    assert spool.read() == []


def test_a_group_spooled_twice_comes_once(tmp_path: Path) -> None:
    spool = StepSpool(RunDir(tmp_path), 1)
    group = Group(prompt(), [trajectory()], ())
    spool.append([group, group])
    assert len(spool.read()) == 1


@given(JSON_OBJECTS)
def test_prompts_survive_json(extra: dict[str, object]) -> None:
    before = prompt(extra_info=extra)
    after = prompt_from_json(json.loads(compact(prompt_to_json(before))))
    assert prompt_to_json(after) == prompt_to_json(before)
    assert after.token_ids.dtype == np.int32


def test_canonical_json_is_one_text_per_value() -> None:
    value = {
        "b": np.float32(0.5),
        "a": [np.int64(3), math.nan, math.inf],
        "c": np.arange(2),
        "d": (True, None),
        "é": "ü",
    }
    assert compact(value) == '{"a":[3,null,null],"b":0.5,"c":[0,1],"d":[true,null],"é":"ü"}'.encode()
    assert compact(dict(reversed(value.items()))) == compact(value)
    assert pretty({"b": 1, "a": 2}) == b'{\n  "a": 2,\n  "b": 1\n}\n'
    assert type(plain(np.bool_(True))) is bool
    with pytest.raises(TypeError, match="object has no JSON form"):
        compact({"x": object()})


def test_step_records_and_metrics_come_back(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    record = StepRecord(
        step=12,
        version_in=11,
        version_out=12,
        inputs={"steps/000012/batch.safetensors": "ab"},
        uids=("u1", "u2"),
        counts={"groups": 2},
        timings={"gen": 0.25},
        device_seconds=1.5,
    )
    assert not has_step_record(run, 12)
    written = write_step_record(run, record)
    assert (written.path, has_step_record(run, 12)) == ("steps/000012/record.json", True)
    assert read_step_record(run, 12) == record
    assert write_step_record(run, record) == written
    write_metrics(run, 12, {"a": 0.5, "b": math.nan})
    back = read_metrics(run, 12)
    assert back["a"] == 0.5
    assert math.isnan(back["b"])
    run.publish_bytes("steps/000012/record.json", b'{"step": 12}')
    with pytest.raises(RecordError, match="not a step record of this version: fields differ"):
        read_step_record(run, 12)


def test_code_version_names_the_commit_of_this_checkout() -> None:
    assert code_version().startswith(("git:", "verl-flyte ", "unknown"))
    assert len(code_version().removeprefix("git:").removesuffix("-dirty")) in (40, len(code_version()))

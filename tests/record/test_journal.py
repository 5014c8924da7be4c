"""The journal loses nothing that it took, whatever a crash tears."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.errors import RecordError
from verl_core.record.append_log import SEGMENT_BYTES, open_log, read_log
from verl_core.record.journal import Journal, read_events
from verl_core.record.json_lines import whole_lines
from verl_core.record.rundir import RunDir


def memory_run() -> RunDir:
    return RunDir(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_events_come_back_numbered_over_several_openings(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path) if kind == "local" else memory_run()
    for opening in range(3):
        journal = Journal(run)
        journal.record("served", [f"a{opening}"], step=opening, base_uids=[f"a{opening}"])
        journal.record("trained", [f"a{opening}", "b"], step=opening)
        journal.close()
    events = read_events(run)
    assert [event.number for event in events] == [1, 2, 3, 4, 5, 6]
    assert events[3].kind == "trained"
    assert (events[3].uids, events[3].detail) == (("a1", "b"), {"step": 1})
    assert Journal(run).position == 6


def test_cutting_the_file_anywhere_costs_only_the_torn_line(tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path))
    for number in range(3):
        journal.record("finished", [f"u{number}"])
    whole = (tmp_path / "journal.jsonl").read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for length in sorted({*range(0, len(whole), 5), *ends, *(end - 1 for end in ends)}):
        run = RunDir(tmp_path / f"cut{length}")
        (tmp_path / f"cut{length}" / "journal.jsonl").write_bytes(whole[:length])
        left = sum(end <= length for end in ends)
        assert len(read_events(run)) == left  # a reader leaves the tail alone
        opened = Journal(run)
        assert opened.cut == length - (ends[left - 1] if left else 0)
        opened.record("served", ["new"])
        assert [(e.number, e.uids) for e in read_events(run)][-1] == (left + 1, ("new",))
        opened.close()


def test_zeros_left_by_a_power_cut_are_torn_too(tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path))
    journal.record("served", ["a"])
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"\0" * 50 + b"\n")
    assert Journal(RunDir(tmp_path)).cut == 51


def test_damage_inside_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path))
    for name in "abc":
        journal.record("served", [name])
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"b', 1))
    with pytest.raises(RecordError, match="line 2 is damaged"):
        read_events(RunDir(tmp_path))


def test_threads_and_processes_write_in_turns(tmp_path: Path) -> None:
    code = (
        "import sys; from verl_core.record.journal import Journal; from verl_core.record.rundir import RunDir\n"
        "journal = Journal(RunDir(sys.argv[1]))\n"
        "for i in range(40): journal.record('served', [sys.argv[2] + str(i)])"
    )
    others = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in ("p", "q")]
    journal = Journal(RunDir(tmp_path))
    threads = [
        threading.Thread(target=lambda name=name: [journal.record("served", [f"{name}{i}"]) for i in range(40)])
        for name in ("s", "t")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    events = read_events(RunDir(tmp_path))
    assert [event.number for event in events] == list(range(1, 161))
    assert sorted(event.uids[0] for event in events) == sorted(f"{name}{i}" for name in "pqst" for i in range(40))


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    code = (
        "import sys; from verl_core.record.journal import Journal; from verl_core.record.rundir import RunDir\n"
        "journal = Journal(RunDir(sys.argv[1]))\n"
        "for i in range(10**6):\n"
        "    journal.record('served', [str(i)]); print(i, flush=True)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(50)]
    writer.kill()
    told += [int(line) for line in writer.stdout.read().split()]
    writer.wait(timeout=30)
    events = read_events(RunDir(tmp_path))
    assert len(events) - len(told) in (0, 1)  # an event may be durable before its writer could say so, never after
    assert [event.uids[0] for event in events] == [str(i) for i in range(len(events))]


def test_object_store_log_rolls_over_and_never_rewrites_what_another_process_wrote() -> None:
    run = memory_run()
    line = json.dumps({"pad": "x" * 1000}).encode() + b"\n"
    for _ in range(2):
        log = open_log(run.storage, "deep/log.jsonl", whole_lines)
        for _ in range(SEGMENT_BYTES // len(line) + 2):
            with log.exclusive():
                log.write(line)
    assert run.names("deep") == [f"log-{number:06d}.jsonl" for number in (1, 2, 3, 4)]
    assert read_log(run.storage, "deep/log.jsonl", whole_lines) == line * (2 * (SEGMENT_BYTES // len(line) + 2))


@given(st.lists(st.binary(max_size=12), max_size=4), st.binary(max_size=9))
def test_whole_lines_never_splits_a_line(lines: list[bytes], tail: bytes) -> None:
    data = b"".join(json.dumps({"v": line.hex()}).encode() + b"\n" for line in lines)
    assert whole_lines(data + tail.replace(b"\n", b"")) == len(data)

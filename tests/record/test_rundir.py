"""Publishing is all or nothing, and one live run owns a directory."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_core.errors import RecordError
from verl_core.record import owner as owner_module
from verl_core.record.owner import NAME, Lease, OwnerLock
from verl_core.record.rundir import RunDir
from verl_core.record.storage import Storage


@pytest.fixture(params=["local", "object store"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run") if request.param == "local" else RunDir(f"memory://{uuid.uuid4().hex}/run")


def test_publish_read_list_remove(run: RunDir, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"two")
    first = run.publish_bytes("steps/000012/a.bin", b"one")
    second = run.publish_file("steps/000003/b.bin", source)
    assert first == ("steps/000012/a.bin", hashlib.sha256(b"one").hexdigest())
    assert second.sha256 == hashlib.sha256(b"two").hexdigest()
    assert run.read(first.path, first.sha256) == b"one"
    assert (run.steps(), run.names("steps/000012"), run.names("nowhere")) == ([3, 12], ["a.bin"], [])
    assert run.publish_bytes(first.path, b"new").sha256 != first.sha256
    assert run.read(first.path) == b"new"
    with pytest.raises(RecordError, match="changed or damaged"):
        run.read(first.path, first.sha256)
    run.remove("steps/000012")
    run.remove("steps/000012")
    assert not run.exists(first.path)
    with pytest.raises(RecordError, match="missing"):
        run.read(first.path)


def test_create_lets_one_of_many_win(run: RunDir) -> None:
    assert [run.storage.create("x", bytes([number])) for number in range(3)] == [True, False, False]
    assert run.read("x") == b"\0"


def test_local_names_hide_half_written_files_and_sweep_removes_them(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.publish_bytes("steps/000001/a", b"")
    for path in (".tmp-x-1-0", "steps/000001/.tmp-a-1-0"):
        (tmp_path / path).write_bytes(b"half")
    (tmp_path / "checkpoints/.tmp-000001-1-0/inner").mkdir(parents=True)
    assert run.names() == ["checkpoints", "steps"]
    assert run.sweep() == [".tmp-x-1-0", "checkpoints/.tmp-000001-1-0", "steps/000001/.tmp-a-1-0"]
    assert run.sweep() == []


def test_unknown_protocol_is_a_clear_error() -> None:
    with pytest.raises(RecordError, match="cannot open the run directory nosuch"):
        RunDir("nosuch://bucket/run")


def test_second_run_in_a_directory_is_refused_until_the_first_ends(run: RunDir) -> None:
    lock = OwnerLock.acquire(run, "run-one")
    with pytest.raises(RecordError, match=r"in use by run-one .* Wait for it, stop it, or give this run another"):
        OwnerLock.acquire(run, "run-two")
    with pytest.raises(RecordError, match="in use"):
        OwnerLock.acquire(run)
    joined = OwnerLock.acquire(run, "run-one")
    assert (lock.holder, joined.holder) == (True, False)
    joined.release()
    with pytest.raises(RecordError, match="in use"):
        OwnerLock.acquire(run, "run-two")
    lock.release()
    lock.release()
    with OwnerLock.acquire(run, "run-two") as second:
        assert second.holder


def test_a_dead_owners_lock_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from verl_core.record.owner import OwnerLock; from verl_core.record.rundir import RunDir\n"
        "lock = OwnerLock.acquire(RunDir(sys.argv[1]), 'other'); print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(RecordError, match=f"in use by other .*process {other.pid}"):
        OwnerLock.acquire(RunDir(tmp_path))
    other.kill()
    other.wait(timeout=30)
    assert OwnerLock.acquire(RunDir(tmp_path)).holder


def test_a_lease_that_nobody_renews_is_free_and_its_late_owner_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr(owner_module, "RENEW_S", 0.2)
    first = OwnerLock.acquire(run, "first")
    time.sleep(0.5)
    held = json.loads(run.read(NAME))
    assert held["renewed"] > held["since"] + 0.1
    # The machine of `first` stands still; its lease runs out and another takes the directory.
    run.remove(NAME)
    second = OwnerLock.acquire(run, "second")
    time.sleep(0.5)
    with pytest.raises(RecordError, match="second took it"):
        first.check()
    first.release()
    second.check()
    assert json.loads(run.read(NAME))["owner"] == "second"
    second.release()

    run.publish_bytes(NAME, json.dumps({"owner": "dead", "renewed": time.time() - 1000}).encode())
    with OwnerLock.acquire(run, "third") as third:
        assert third.holder
    assert not run.exists(NAME)


class RacedStorage:
    """A store on which somebody else acts right after our first `create` that succeeded."""

    def __init__(self, inner: Storage, other: Callable[[], object]) -> None:
        self._inner, self._other = inner, other
        self.create_calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> bool:
        made = self._inner.create(path, data)
        self.create_calls += made
        if made and self.create_calls == 1:
            self._other()
        return made


@pytest.mark.parametrize("owner", ["rival", "same"])
def test_of_two_that_saw_the_same_expired_lease_one_backs_off(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "SETTLE_S", 0.1)
    run = RunDir(f"memory://{uuid.uuid4().hex}")
    run.publish_bytes(NAME, json.dumps({"owner": "dead", "token": "x", "renewed": 0.0}).encode())
    rival = {"owner": owner, "host": "h", "pid": 1, "since": 0.0, "token": "y", "renewed": time.time()}

    def take_it_away() -> None:  # the rival read the expired lease before we removed it
        run.remove(NAME)
        run.storage.create(NAME, json.dumps(rival).encode())

    raced = RacedStorage(run.storage, take_it_away)
    claim = {"owner": "same", "host": "h", "pid": 2, "since": 0.0, "token": "z"}
    if owner == "rival":
        with pytest.raises(RecordError, match="in use by rival"):
            Lease.take(raced, run.root, claim)  # type: ignore[arg-type]
    else:
        assert Lease.take(raced, run.root, claim) is None  # type: ignore[arg-type]
    assert raced.create_calls == 1
    assert json.loads(run.read(NAME)) == rival


def test_leaving_does_not_give_back_the_lease_of_another() -> None:
    run = RunDir(f"memory://{uuid.uuid4().hex}")
    first = OwnerLock.acquire(run, "first")
    run.remove(NAME)
    with OwnerLock.acquire(run, "second"):
        first.release()  # before its next renewal could tell it
        assert json.loads(run.read(NAME))["owner"] == "second"

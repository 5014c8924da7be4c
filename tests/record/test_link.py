"""Two sides hear of each other's end: said, or by silence."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verl_core.errors import DeadlineExceeded, EngineDead, StreamFailed
from verl_core.record.link import BEAT_S, LOOK_S, SILENCE_S, Link, Side
from verl_core.record.rundir import RunDir

SILENT_S = 0.5


def link(root: Path | str, side: Side, meeting: str = "m", silence_s: float = SILENT_S) -> Link:
    return Link(RunDir(root), meeting, side, beat_s=0.05, look_s=0.02, silence_s=silence_s)


def trouble_of(end: Link, seconds: float = 10.0) -> str:
    """What `check` raises, as soon as it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            end.check()
        except StreamFailed as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("nothing was noticed")


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_what_one_side_offers_the_other_gets(tmp_path: Path, store: str) -> None:
    root = tmp_path if store == "disk" else f"memory://link-{tmp_path.name}"
    with link(root, "rollout") as rollout, link(root, "trainer") as trainer:
        rollout.wait(10, "starting", "ready")
        with pytest.raises(DeadlineExceeded, match=r"the rollout side to be ready.*the rollout side is starting"):
            trainer.wait(0.2, "ready")
        rollout.tell({"tokens": 7})
        rollout.ready({"port": "tcp://here:1"})
        seen = trainer.wait(10, "ready")
        assert seen.offer == {"port": "tcp://here:1"}
        assert seen.numbers == {"tokens": 7}
        rollout.check()
        trainer.check()


def test_a_side_that_never_comes_is_a_named_deadline(tmp_path: Path) -> None:
    with link(tmp_path, "trainer") as trainer, pytest.raises(DeadlineExceeded, match=r"rollout side was never seen"):
        trainer.wait(0.2, "ready")


def test_a_failure_is_told_in_its_own_words_to_both_waits(tmp_path: Path) -> None:
    with link(tmp_path, "trainer") as trainer:
        with pytest.raises(EngineDead), link(tmp_path, "rollout"):
            raise EngineDead("server-0 is gone for good")
        assert trouble_of(trainer) == "the rollout side failed: EngineDead: server-0 is gone for good"
        with pytest.raises(StreamFailed, match="server-0 is gone for good"):
            trainer.wait(10, "ready")


def test_the_trainer_may_leave_and_the_rollout_may_not(tmp_path: Path) -> None:
    with link(tmp_path, "rollout") as rollout:
        with link(tmp_path, "trainer"):
            rollout.wait(10, "starting")
            assert not rollout.over()
        rollout.wait(10, "done")
        assert rollout.over()
        rollout.check()
    with link(tmp_path, "trainer") as trainer:
        assert "rollout side ended before training did" in trouble_of(trainer)


KILLED = """
import sys, time
from pathlib import Path
from verl_core.record.link import Link
from verl_core.record.rundir import RunDir
with Link(RunDir(Path(sys.argv[1])), "m", "rollout", beat_s=0.05, look_s=0.02) as link:
    link.tell({"step": 3})
    link.ready()
    time.sleep(60)
"""


def test_a_killed_process_is_noticed_by_its_silence(tmp_path: Path, repo_root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=repo_root)
    try:
        with link(tmp_path, "trainer", silence_s=2.0) as trainer:
            trainer.wait(60, "ready")
            time.sleep(0.3)
            trainer.check()
            process.kill()
            process.wait()
            said = trouble_of(trainer)
            assert said.startswith("the rollout side fell silent: no heartbeat for 2 s")
            assert "{'step': 3}" in said
    finally:
        process.kill()


def test_silence_is_not_judged_by_anybodys_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts whose time of writing never moves, and lies in the far past, are alive while they change."""
    monkeypatch.setattr("verl_core.record.link.time.time", lambda: 0.0)
    with link(tmp_path, "trainer") as trainer, link(tmp_path, "rollout"):
        seen = trainer.wait(10, "starting")
        assert seen.time == 0.0
        time.sleep(3 * SILENT_S)
        trainer.check()


def test_a_side_that_was_started_again_is_noticed(tmp_path: Path) -> None:
    with link(tmp_path, "trainer", silence_s=30) as trainer:
        first = link(tmp_path, "rollout")
        first._write()
        trainer.wait(10, "starting")
        with link(tmp_path, "rollout"):
            assert "started again" in trouble_of(trainer)


def test_pairs_do_not_meet(tmp_path: Path) -> None:
    with pytest.raises(EngineDead), link(tmp_path, "rollout", "first"):
        raise EngineDead("long ago")
    with link(tmp_path, "trainer", "second") as trainer:
        time.sleep(0.2)
        trainer.check()


def test_a_hiccup_of_the_storage_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with link(tmp_path, "trainer") as trainer, link(tmp_path, "rollout"):
        trainer.wait(10, "starting")
        broken = threading.Event()
        read = RunDir.read

        def flaky(self: RunDir, path: str, sha256: str = "") -> bytes:
            if broken.is_set():
                raise OSError("storage is busy")
            return read(self, path, sha256)

        monkeypatch.setattr(RunDir, "read", flaky)
        broken.set()
        time.sleep(2 * SILENT_S)
        trainer.check()
        broken.clear()
        trainer.wait(10, "starting")
        trainer.check()


def test_the_bounds_that_the_documents_name() -> None:
    assert (BEAT_S, SILENCE_S) == (5.0, 25.0)
    assert BEAT_S + SILENCE_S <= 30.0
    assert LOOK_S <= 1.0

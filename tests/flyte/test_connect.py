"""Joining a held cluster, and going on from what the node before left."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tasks import connect, rendezvous
from tasks.connect import attach, confirm
from tasks.literals import StageNote
from tasks.rendezvous import Rendezvous
from verl_core.config import RunConfig
from verl_core.errors import DeadlineExceeded, RecordError, ResourceError
from verl_core.record.rundir import RunDir
from verl_core.trainer.step_files import StepFiles
from verl_core.trajectory import Reward


class Clusters:
    """Stands for Ray: lets nodes in at one address only, after `refusals` refusals there."""

    def __init__(self, living: str, refusals: int = 0) -> None:
        self.living, self.refusals, self.tried = living, refusals, []

    def start_ray(self, config: RunConfig, address: str) -> None:
        self.tried.append(address)
        if address != self.living:
            raise ResourceError(f"cannot reach Ray at {address}")
        if self.refusals:
            self.refusals -= 1
            raise ResourceError("Starting Ray client server failed")


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    monkeypatch.setattr(rendezvous, "_POLL_S", 0.02)
    monkeypatch.setattr(connect, "_AGAIN_S", 0.02)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    return Rendezvous(RunDir(tmp_path / "run"), "execution")


def config_of(up_timeout_s: float) -> RunConfig:
    config = RunConfig()
    config.ray.up_timeout_s = up_timeout_s
    return config


def test_a_dead_holders_address_is_tried_until_its_successor_publishes(
    meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = Clusters(living="ray://second:10001")
    monkeypatch.setattr(connect, "start_ray", clusters.start_ray)
    meeting.publish("ray://dead:10001")  # its heartbeat is fresh: nobody can know yet
    threading.Timer(0.6, meeting.publish, ["ray://second:10001"]).start()
    attach(config_of(30), meeting)
    assert clusters.tried[-1] == "ray://second:10001"
    assert clusters.tried.count("ray://dead:10001") > 4
    assert clusters.tried.count("ray://second:10001") == 1


def test_a_head_that_refuses_now_and_then_is_asked_again(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(living="ray://first:10001", refusals=6)
    monkeypatch.setattr(connect, "start_ray", clusters.start_ray)
    meeting.publish("ray://first:10001")
    attach(config_of(30), meeting)
    assert len(clusters.tried) == 7


def test_time_runs_out_with_the_last_refusal(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "start_ray", Clusters(living="").start_ray)
    meeting.publish("ray://dead:10001")
    with pytest.raises(DeadlineExceeded, match=r"let this node in.*last refusal: cannot reach Ray at ray://dead"):
        attach(config_of(0.3), meeting)


@pytest.fixture
def stage(tmp_path: Path) -> tuple[StepFiles, StageNote]:
    """A reward stage that a process finished, and the note of it that travels to the next node."""
    files = StepFiles(RunDir(tmp_path / "run"))
    done = files.save_rewards(1, [Reward("a_0_0", 1.0), Reward("a_0_1", 0.0)], {"reward/mean": 0.5})
    return files, StageNote(done.stage, done.step, done.sha256)


def trainer_with(files: StepFiles) -> SimpleNamespace:
    """What `confirm` looks at, in the process of the next node: nothing remembered."""
    return SimpleNamespace(session=SimpleNamespace(files=StepFiles(files.run), run=files.run))


def test_what_the_node_before_left_is_accepted(stage: tuple[StepFiles, StageNote]) -> None:
    files, note = stage
    confirm(trainer_with(files), note)
    confirm(trainer_with(files), StageNote())  # the start left nothing


def test_a_changed_byte_is_noticed_whatever_the_note_says(stage: tuple[StepFiles, StageNote]) -> None:
    files, note = stage
    path = files.run.local / files.path("reward", 1)
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[len(data) // 2] ^= 1
    path.write_bytes(data.tobytes())
    with pytest.raises(
        RecordError, match=rf"step 1: the reward node recorded sha256 {note.sha256}, but .* holds [0-9a-f]"
    ):
        confirm(trainer_with(files), note)


def test_a_file_that_is_gone_is_noticed(stage: tuple[StepFiles, StageNote]) -> None:
    files, note = stage
    (files.run.local / files.path("reward", 1)).unlink()
    with pytest.raises(RecordError, match=r"holds nothing"):
        confirm(trainer_with(files), note)


def test_on_an_object_store_the_object_is_hashed(tmp_path: Path) -> None:
    run = RunDir("memory://verl-confirm/run")
    files = StepFiles(run)
    done = files.save_rewards(1, [Reward("a_0_0", 1.0)], {})
    note = StageNote(done.stage, done.step, done.sha256)
    confirm(trainer_with(files), note)
    run.publish_bytes(files.path("reward", 1), b"something else")
    with pytest.raises(RecordError, match="recorded sha256"):
        confirm(trainer_with(files), note)

"""StepFiles: a stage is done when its file is there, whoever asks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.trainer.test_stages import row
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import StepRecord
from verl_core.trainer.step_files import StepFiles
from verl_core.trajectory import Reward


def test_another_process_finds_the_stage_its_bytes_and_its_numbers(tmp_path: Path) -> None:
    writer, reader = StepFiles(RunDir(tmp_path)), StepFiles(RunDir(tmp_path))
    assert reader.finished("rollout", 3) is None
    rows = [row("a", 0, 2), row("a", 1, 3)]
    written = writer.save_trajectories(3, rows, {"timing_s/gen": 1.5})
    found = reader.finished("rollout", 3)
    assert found == written
    assert found.sha256 == hashlib.sha256(Path(found.path).read_bytes()).hexdigest()
    assert [one.key for one in reader.trajectories(3)] == ["a_0_0", "a_1_0"]
    assert reader.metrics(3) == {"timing_s/gen": 1.5}


def test_a_lost_note_costs_numbers_and_nothing_else(tmp_path: Path) -> None:
    StepFiles(RunDir(tmp_path)).save_rewards(1, [Reward("a_0_0", 1.0)], {"critic/score/mean": 1.0})
    (tmp_path / "steps/000001/.reward.json").unlink()
    reader = StepFiles(RunDir(tmp_path))
    found = reader.finished("reward", 1)
    assert found is not None
    assert found.metrics == {}
    assert found.sha256 == hashlib.sha256(Path(found.path).read_bytes()).hexdigest()
    assert reader.rewards(1) == [Reward("a_0_0", 1.0)]


def test_memory_holds_one_step_and_never_another_step_s_rows(tmp_path: Path) -> None:
    files = StepFiles(RunDir(tmp_path))
    files.save_trajectories(1, [row("a", 0, 1)], {})
    files.save_trajectories(2, [row("b", 0, 1)], {})
    assert [one.uid for one in files.trajectories(1)] == ["a"]
    assert [one.uid for one in files.trajectories(2)] == ["b"]


def test_the_record_makes_the_step_done(tmp_path: Path) -> None:
    files = StepFiles(RunDir(tmp_path))
    output = files.save_record(StepRecord(1, 0, 1, checkpoint="checkpoints/000001"), {"actor/pg_loss": 0.5})
    assert output.checkpoint == "checkpoints/000001"
    again = StepFiles(RunDir(tmp_path)).finished("update", 1)
    assert again is not None
    assert again.metrics == {"actor/pg_loss": 0.5}
    assert again.checkpoint == "checkpoints/000001"

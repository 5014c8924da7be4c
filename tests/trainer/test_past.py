"""Where a run started is written down once, and nothing may disagree with it later."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import RunConfig, resolve
from verl_core.errors import CheckpointError, ConfigError, DataError
from verl_core.record.checkpoints import CheckpointStore
from verl_core.record.rundir import RunDir
from verl_core.trainer.past import agree_with_past, first_step_of, record_opening, start_of

DATA = {"rows": 64, "fingerprint": "aa"}


def config_of(*overrides: str) -> RunConfig:
    return resolve("configs/scripted.yaml", overrides).config


def a_checkpoint(root: Path, step: int, content: str = "w") -> str:
    """A whole checkpoint of another run."""
    store = CheckpointStore(RunDir(root))
    store.save(step, lambda folder: (folder / "model.safetensors").write_text(content) and None, {"kl": {}})
    return str(root / "checkpoints" / f"{step:06d}")


def started_from(run: RunDir, path: str) -> None:
    config = config_of("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}")
    start, checkpoint = start_of(run, config, DATA, None)
    assert checkpoint is not None
    record_opening(run, config, start)


def test_a_run_that_started_from_a_checkpoint_goes_on_from_it_by_itself(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    started_from(run, a_checkpoint(tmp_path / "other", 5))
    start, checkpoint = start_of(run, config_of(), DATA, None)  # resume_mode=auto, no path
    assert start.step == 5
    assert checkpoint is not None
    assert first_step_of(run, config_of()) == 6


def test_another_start_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    started_from(run, a_checkpoint(tmp_path / "other", 5))
    other = a_checkpoint(tmp_path / "third", 5, content="other weights")
    config = config_of("trainer.resume_mode=resume_path", f"trainer.resume_from_path={other}")
    with pytest.raises(CheckpointError, match=r"To branch from it choose another trainer.experiment_name"):
        start_of(run, config, DATA, None)


def test_a_checkpoint_of_the_run_itself_is_no_new_start(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    start, _ = start_of(run, config_of(), DATA, None)
    record_opening(run, config_of(), start)
    own = a_checkpoint(tmp_path / "run", 2)
    config = config_of("trainer.resume_mode=resume_path", f"trainer.resume_from_path={own}")
    with pytest.raises(CheckpointError, match="started from the start policy"):
        start_of(run, config, DATA, None)


def test_other_data_at_the_same_path_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    start, _ = start_of(run, config_of(), DATA, None)
    record_opening(run, config_of(), start)
    with pytest.raises(DataError, match="fingerprint: aa -> bb"):
        start_of(run, config_of(), {**DATA, "fingerprint": "bb"}, None)


def test_an_attempt_that_never_opened_leaves_no_trace(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    agree_with_past(run, config_of())  # then it failed, say on an over-long prompt
    agree_with_past(run, config_of("data.truncation=drop"))


def test_resume_disabled_lets_the_nodes_of_one_execution_in(tmp_path: Path) -> None:
    run, config = RunDir(tmp_path / "run"), config_of("trainer.resume_mode=disable")
    start, _ = start_of(run, config, DATA, "execution-1")
    record_opening(run, config, start)
    run.publish_bytes("journal.jsonl", b"{}\n")
    agree_with_past(run, config, "execution-1")
    for owner in ("execution-2", None):
        with pytest.raises(ConfigError, match="holds a run already"):
            agree_with_past(run, config, owner)

"""The workflows in one process, as `pyflyte run` does it: train, promote, evaluate."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from tasks.literals import file_in_place, folder_in_place, location
from tasks.promotion import dated, promote
from verl_core.errors import CheckpointError, GateError
from workflows.evaluate import evaluate
from workflows.promotion import train_and_promote

SCRIPTED = {"defaults": ["scripted"]}
KICKOFF = datetime(2026, 3, 1, 2, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dated_run_is_promoted_and_its_checkpoint_evaluated(ray_cluster: None, tmp_path: Path) -> None:
    config = {**SCRIPTED, "trainer": {"default_local_dir": str(tmp_path), "experiment_name": "nightly"}}
    overrides = ["trainer.total_training_steps=2", "trainer.steps_per_node=2", "trainer.test_freq=2"]
    done = train_and_promote(config=config, overrides=overrides, kickoff=KICKOFF, floor=0.0)

    run = tmp_path / "nightly-20260301-0200"
    note = json.loads((tmp_path / "promoted.json").read_text())
    assert location(done.pointer) == str(tmp_path / "promoted.json")
    assert note["checkpoint"] == str(run / "checkpoints" / "000002")
    assert note["val_after"] == done.score == json.loads((run / "summary.json").read_text())["val_after"]

    metrics = evaluate(config=config, checkpoint=note["checkpoint"], overrides=overrides)
    (score,) = [value for name, value in metrics.items() if name.endswith("/reward/mean@1")]
    assert score == pytest.approx(done.score)  # greedy, same weights, same rows
    assert json.loads((run / "summary.json").read_text())["steps"] == 2  # the run itself was left alone


def test_each_kickoff_has_a_directory_of_its_own() -> None:
    named = dated(config=SCRIPTED, overrides=["trainer.seed=2"], kickoff=KICKOFF)
    assert named == ["trainer.seed=2", "trainer.experiment_name=scripted-20260301-0200"]


@pytest.mark.parametrize("score", [0.7, None])
def test_the_pointer_stays_when_the_gate_is_shut(tmp_path: Path, score: float | None) -> None:
    (tmp_path / "promoted.json").write_text("before")
    (tmp_path / "run" / "checkpoints" / "000009").mkdir(parents=True)
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"val_after": score}))
    with pytest.raises(GateError, match=rf"validation reward {score} of .*000009 is below 0.75"):
        promote(
            config=SCRIPTED,
            overrides=[f"trainer.default_local_dir={tmp_path}"],
            summary=file_in_place(str(tmp_path / "run" / "summary.json")),
            checkpoint=folder_in_place(str(tmp_path / "run" / "checkpoints" / "000009")),
            floor=0.75,
        )
    assert (tmp_path / "promoted.json").read_text() == "before"


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    from tasks.evaluation import content_of

    with pytest.raises(CheckpointError, match=r"000007"):
        content_of(str(tmp_path / "checkpoints" / "000007"))
    assert content_of("") == "start policy"

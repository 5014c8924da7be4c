"""The fine-tuning workflow in one process, as `pyflyte run` does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.literals import location
from workflows.sft import train
from workflows.train import train as reinforce


def test_a_fine_tuned_policy_comes_out(tmp_path: Path) -> None:
    overrides = [
        f"trainer.default_local_dir={tmp_path}",
        "trainer.total_training_steps=4",
        "trainer.test_freq=2",
        "warm_start.steps=2",
        "warm_start.hidden_size=32",
        "warm_start.num_layers=1",
        "data.prepare.train_size=64",
    ]
    done = train(config={"defaults": ["sft"]}, overrides=overrides)
    assert done.steps == 4
    summary = json.loads(Path(location(done.summary)).read_text())
    assert done.val_loss == summary["val_after"]["val/loss"] < summary["val_before"]["val/loss"]
    assert location(done.checkpoint) == str(tmp_path / "sft" / "checkpoints" / "000004")
    assert (Path(location(done.checkpoint)) / "model.safetensors").is_file()
    assert Path(location(done.report)).is_file()


def test_a_configuration_of_the_other_kind_is_refused_before_a_cluster_is_asked_for(tmp_path: Path) -> None:
    small = ["warm_start.steps=2", "warm_start.hidden_size=32", "warm_start.num_layers=1", "data.prepare.val_size=8"]
    small.append(f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(Exception, match=r"sft\.enable=true is supervised fine-tuning: run workflows/sft\.py"):
        reinforce(config={"defaults": ["sft"]}, overrides=small)
    with pytest.raises(Exception, match=r"sft\.enable=false: .* Set sft\.enable=true, or run workflows/train\.py"):
        train(config={"defaults": ["quickstart"]}, overrides=small)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["assets"]

"""Evaluation returns the numbers of the weights it was asked for, and of no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.conftest import MakeConfig
from verl_core.config import RunConfig
from verl_core.errors import CheckpointError, DataError
from verl_core.record.checkpoints import CheckpointStore
from verl_core.record.rundir import RunDir
from verl_core.trainer.evaluate import evaluate, folder_name
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.ray_session import run_root

LEGACY = "trainer.use_v1=false"  # two processes less to start


def scores(metrics: dict[str, float]) -> dict[str, float]:
    """What depends on the weights alone."""
    return {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


def kept(config: RunConfig) -> dict[str, dict[str, float]]:
    """Folder of each evaluation that was done -> its numbers."""
    root = Path(config.trainer.default_local_dir)
    return {
        path.parents[2].name: json.loads(path.read_text())
        for path in root.glob(f"{config.trainer.experiment_name}-eval-*/steps/*/validation.json")
    }


def other_weights(checkpoint: Path, run: RunDir, step: int) -> Path:
    """A checkpoint of another run: the same files, but for the weights, which are zero."""

    def write(folder: Path) -> None:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        (folder / "MANIFEST.json").unlink()
        weights = load_file(folder / "model.safetensors")
        save_file(
            {name: torch.zeros_like(w) for name, w in weights.items()}, folder / "model.safetensors", {"format": "pt"}
        )

    return CheckpointStore(run).save(step, write, {}).folder


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_other_weights_under_the_same_path_are_not_answered_with_old_numbers(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config("ours", LEGACY, "trainer.save_freq=1", "trainer.total_training_steps=1", "trainer.test_freq=1")
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
    close_trainer(config)
    checkpoint = Path(run_root(config), "checkpoints/000001")

    ours = evaluate(config, str(checkpoint))
    measured = json.loads(RunDir(run_root(config)).read("steps/000001/validation.json"))
    assert scores(ours) == scores(measured)  # what the run itself measured after the same step
    assert list(kept(config).values()) == [ours]

    theirs = other_weights(checkpoint, RunDir(tmp_path / "theirs"), 1)
    checkpoint.rename(tmp_path / "aside")
    theirs.rename(checkpoint)
    answer = evaluate(config, str(checkpoint) + "/")
    folders = kept(config)
    assert len(folders) == 2
    assert all(name.startswith("ours-eval-000001-") for name in folders)
    assert sorted(numbers["timing_s/testing"] for numbers in folders.values()) == sorted(
        [ours["timing_s/testing"], answer["timing_s/testing"]]
    )
    assert answer["timing_s/testing"] != ours["timing_s/testing"]  # it was measured, not looked up


def test_the_folder_is_named_by_the_weights(tmp_path: Path) -> None:
    """Two checkpoints of a run, another run's of the same step, a copy, and three start policies."""
    config, other = RunConfig(), RunConfig()
    config.actor_rollout_ref.model.path, other.actor_rollout_ref.model.path = "models/a", "models/b"

    def saved(run: str, step: int, content: bytes) -> str:
        store = CheckpointStore(RunDir(tmp_path / run))
        return str(store.save(step, lambda folder: _write(folder, content), {}).folder)

    first, second, theirs = saved("ours", 1, b"a"), saved("ours", 2, b"b"), saved("theirs", 1, b"c")
    names = [folder_name(config, path) for path in (first, second, theirs, "")] + [folder_name(other, "")]
    other.actor_rollout_ref.model.lora_adapter_path = "models/adapter"
    names.append(folder_name(other, ""))
    assert len(set(names)) == 6
    assert [name.rpartition("-")[0] for name in names] == ["000001", "000002", "000001", "start", "start", "start"]
    shutil.copytree(first, tmp_path / "copies/000001")
    assert folder_name(config, str(tmp_path / "copies/000001/")) == names[0]


def _write(folder: Path, content: bytes) -> None:
    (folder / "weights").write_bytes(content)


def test_without_a_validation_set_it_says_what_to_do(make_config: MakeConfig) -> None:
    config = make_config("blind", LEGACY)
    config.data.val_files = []
    with pytest.raises(DataError) as caught:
        evaluate(config, "")
    assert f"```text\n{caught.value}\n```" in Path("docs/errors.md").read_text()


def test_a_checkpoint_that_is_not_there_starts_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("lost", LEGACY)
    with pytest.raises(CheckpointError, match="there is no checkpoint folder at"):
        evaluate(config, str(tmp_path / "nowhere" / "000002"))
    assert kept(config) == {}

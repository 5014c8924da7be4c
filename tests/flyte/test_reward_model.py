"""The reward model as nodes of a graph: alone, and before the steps of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.literals import location
from verl_core.config import resolve
from verl_core.trainer.assets import reward_folder
from workflows.reward_model import reward_model_training
from workflows.train import train

CONFIG: dict[str, Any] = {"defaults": ["scripted"]}


def settings(root: Path, *more: str) -> list[str]:
    return [
        f"trainer.default_local_dir={root}",
        "reward_training.enable=true",
        "reward_training.pairs=256",
        "reward_training.val_pairs=64",
        "reward_training.steps=20",
        "reward_training.lr=5e-3",
        *more,
    ]


def test_the_place_depends_on_what_the_model_is_made_of(tmp_path: Path) -> None:
    places = {
        reward_folder(resolve("configs/scripted.yaml", settings(tmp_path, more)).config)
        for more in (
            "trainer.seed=2", "trainer.save_freq=1", "reward_training.save_freq=7",
            "reward_training.seed=2", "data.prepare.seed=2",
        )
    }  # fmt: skip
    assert len(places) == 3  # seed of the run and checkpoints change nothing of it
    assert {Path(place).parent for place in places} == {tmp_path / "assets"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_graph_trains_it_once_and_a_run_is_rewarded_by_it(ray_cluster: None, tmp_path: Path) -> None:
    on = ("reward.reward_model.enable=true", "trainer.total_training_steps=1", "trainer.test_freq=1")
    asked = settings(tmp_path, *on)
    made = reward_model_training(config=CONFIG, overrides=asked)
    config = resolve(CONFIG, asked).config
    assert location(made.model) == reward_folder(config)
    account = json.loads((Path(reward_folder(config)) / "reward_model.json").read_text())["result"]
    assert (made.loss, made.accuracy) == (account["loss"], account["accuracy"])
    before = (Path(reward_folder(config)) / "model.safetensors").stat().st_mtime_ns
    done = train(config=CONFIG, overrides=asked)
    assert (Path(reward_folder(config)) / "model.safetensors").stat().st_mtime_ns == before
    assert done.steps == 1
    named = (tmp_path / "scripted" / "config.yaml").read_text()
    assert f"model_path: {reward_folder(config)}" in named

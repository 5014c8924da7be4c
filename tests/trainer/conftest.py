"""A tiny scripted run, ready to train; its data and policy are made once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verl_core.config import RunConfig, resolve
from verl_core.trainer.assets import data_files, model_folder, with_assets
from verl_core.trainer.finish import Summary
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.run import train

MakeConfig = Callable[..., RunConfig]


def stop_in_step_4(config: RunConfig) -> None:
    """Steps 1 to 3, and the trajectories of step 4; then the run is closed."""
    with open_trainer(config) as trainer:
        trainer.begin()
        for step in (1, 2, 3):
            trainer.step(step)
        trainer.rollout(4)
    close_trainer(config)


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], str]:
    """(train files, validation files, policy folder) of configs/scripted.yaml."""
    root = tmp_path_factory.mktemp("assets")
    config = resolve("configs/scripted.yaml", [f"trainer.default_local_dir={root}"]).config
    return *data_files(config), model_folder(config)


@pytest.fixture
def make_config(assets: tuple[list[str], list[str], str], tmp_path: Path) -> Iterator[MakeConfig]:
    """make_config(name, *overrides): a run of its own under tmp_path, closed at the end of the test."""
    made: list[RunConfig] = []

    def make(name: str, *overrides: str) -> RunConfig:
        settings = [
            f"trainer.default_local_dir={tmp_path}",
            f"trainer.experiment_name={name}",
            "trainer.init_timeout_s=240",
            *overrides,
        ]
        made.append(with_assets(resolve("configs/scripted.yaml", settings).config, *assets))
        return made[-1]

    yield make
    for config in made:
        close_trainer(config)


@pytest.fixture(scope="session")
def undisturbed(
    ray_cluster: None, assets: tuple[list[str], list[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Summary:
    """Four steps of the sync mode, from start to end in one go."""
    settings = [f"trainer.default_local_dir={tmp_path_factory.mktemp('undisturbed')}", "trainer.init_timeout_s=240"]
    return train(with_assets(resolve("configs/scripted.yaml", settings).config, *assets))

"""A whole run in this process: assets, training, summary. What `python -m verl_core.trainer.run CONFIG` does."""

from __future__ import annotations

import sys

from verl_core.config import RunConfig, resolve
from verl_core.trainer.assets import (
    data_files,
    model_folder,
    reward_folder,
    teacher_folders,
    with_assets,
    with_reward_model,
)
from verl_core.trainer.finish import Summary, finish
from verl_core.trainer.open import close_trainer, open_trainer


def ready(config: RunConfig) -> RunConfig:
    """The configuration with its data files, start policy, teachers and reward model in place."""
    train, val = data_files(config)
    placed = with_assets(config, train, val, model_folder(config), teacher_folders(config))
    if not placed.trains_reward_model:
        return placed
    from verl_core.reward_training import train_reward_model

    return with_reward_model(placed, train_reward_model(placed, reward_folder(config)).path)


def train(config: RunConfig) -> Summary:
    """Train from where the run directory stands to the end, and sum it up.

    Raises:
        VerlError: the message says what to do.
    """
    config = ready(config)
    try:
        with open_trainer(config) as trainer:
            trainer.fit()
            return finish(trainer.session)
    finally:
        close_trainer(config)


def main(arguments: list[str]) -> None:
    """CONFIG [KEY=VALUE ...]"""
    summary = train(resolve(arguments[0], arguments[1:]).config)
    line = f"{summary.steps} steps, reward {summary.reward_first5:.3f} -> {summary.reward_last5:.3f}, {summary.report}"
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

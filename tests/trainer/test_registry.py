"""Trainer modes by name."""

from __future__ import annotations

import pytest

from verl_core.errors import ConfigError
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.registry import get_trainer_cls, register_trainer
from verl_core.trainer.sync import SyncTrainer


def test_known_name() -> None:
    assert get_trainer_cls("sync") is SyncTrainer


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'fast' is unknown. Known modes: .*sync"):
        get_trainer_cls("fast")


def test_a_name_means_one_class() -> None:
    assert register_trainer("sync")(SyncTrainer) is SyncTrainer
    with pytest.raises(ValueError, match="already SyncTrainer"):
        register_trainer("sync")(type("Other", (PPOTrainer,), {}))


def test_only_trainers_can_be_modes() -> None:
    with pytest.raises(TypeError, match="must subclass PPOTrainer"):
        register_trainer("list")(list)  # type: ignore[type-var]

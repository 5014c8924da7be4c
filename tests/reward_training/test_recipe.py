"""A reward model made from a configuration: whole, reused, and the same after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from verl_core.config import RunConfig, resolve
from verl_core.config.schema import RewardTrainingConfig, WarmStartConfig
from verl_core.data.order import EpochOrders
from verl_core.data.prepare import prepare
from verl_core.errors import ConfigError
from verl_core.reward_training import train_reward_model
from verl_core.reward_training.loop import Pairs, Training
from verl_core.trainer.assets import with_assets
from verl_core.warm_start.model import make_tiny_policy


def configured(root: Path, *overrides: str) -> RunConfig:
    """Sums, and an untrained policy of 32 numbers per token: what is learnt here is only that it learns."""
    settings = [
        f"trainer.default_local_dir={root}",
        "reward_training.enable=true",
        "reward_training.pairs=256",
        "reward_training.val_pairs=64",
        "reward_training.steps=30",
        "reward_training.batch_size=32",
        "reward_training.lr=5e-3",
        "reward_training.save_freq=10",
        *overrides,
    ]
    config = resolve("configs/scripted.yaml", settings).config
    made = prepare(config.data.prepare, str(root / "data"))
    policy = root / "policy"
    if not policy.exists():
        make_tiny_policy(policy, WarmStartConfig(hidden_size=32, num_layers=1))
    return with_assets(config, [made.train], [str(made.val)], str(policy))


def test_a_folder_in_transformers_form_that_learnt_and_is_reused(tmp_path: Path) -> None:
    said: list[str] = []
    config = configured(tmp_path)
    made = train_reward_model(config, tmp_path / "rm", said.append)
    assert made.accuracy > 0.6  # noise against answers is easy to tell
    assert (made.steps, len(said)) == (30, 4)
    model = AutoModelForSequenceClassification.from_pretrained(made.path)
    assert (model.config.num_labels, model.config.architectures) == (1, ["LlamaForSequenceClassification"])
    assert AutoTokenizer.from_pretrained(made.path).get_vocab()
    assert not list(tmp_path.glob(".rm*"))
    again = train_reward_model(config, tmp_path / "rm", said.append)
    assert (again.sha256, len(said)) == (made.sha256, 4)
    other = configured(tmp_path, "reward_training.seed=2")
    assert train_reward_model(other, tmp_path / "rm", said.append).sha256 != made.sha256


def test_pairs_come_epoch_after_epoch_in_the_order_of_a_pinned_stream() -> None:
    """Five pairs, three per step. 2 keeps the order apart from the streams that build pairs."""
    rows: Any = list(range(5))
    nothing: Any = None
    pairs, settings = Pairs(rows, []), RewardTrainingConfig(batch_size=3, seed=7)
    training = Training(settings, nothing, pairs, EpochOrders(5, (7, 2)), nothing, "", Path(), "", [])
    drawn: Any = [pair for step in range(4) for pair in training._drawn(step)]
    for epoch in (0, 1):
        words = np.random.PCG64(np.random.SeedSequence([7, 2, epoch])).random_raw(5).tolist()
        assert drawn[5 * epoch : 5 * epoch + 5] == [words.index(word) for word in sorted(words)]


def test_a_training_that_was_cut_off_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    whole = train_reward_model(config, tmp_path / "whole", lambda line: None)
    taken = Training._drawn

    def stops(self: Training, step: int) -> object:
        if step == 15:
            raise KeyboardInterrupt
        return taken(self, step)

    monkeypatch.setattr(Training, "_drawn", stops)
    with pytest.raises(KeyboardInterrupt):
        train_reward_model(config, tmp_path / "cut", lambda line: None)
    assert not (tmp_path / "cut").exists()
    steps: list[int] = []

    def seen(self: Training, step: int) -> object:
        steps.append(step)
        return taken(self, step)

    monkeypatch.setattr(Training, "_drawn", seen)
    assert train_reward_model(config, tmp_path / "cut", lambda line: None).sha256 == whole.sha256
    assert steps == list(range(10, 30))


def test_it_must_be_asked_for(tmp_path: Path) -> None:
    config = configured(tmp_path)
    config.reward_training.enable = False
    with pytest.raises(ConfigError, match=r"reward_training\.enable is false"):
        train_reward_model(config, tmp_path / "rm")

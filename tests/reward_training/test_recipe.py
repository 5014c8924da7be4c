"""A reward model made from a configuration: whole, reused, and the same after an interruption."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from verl_core.config import RunConfig, resolve
from verl_core.config.schema import RewardTrainingConfig, WarmStartConfig
from verl_core.data.order import EpochOrders
from verl_core.data.prepare import prepare
from verl_core.data.tokenizer import load_tokenizer
from verl_core.errors import ConfigError, ModelError
from verl_core.reward_training import train_reward_model
from verl_core.reward_training.loop import Pairs, Training
from verl_core.reward_training.recipe import _records, form_of, recipe_of
from verl_core.trainer.assets import with_assets
from verl_core.warm_start.model import make_tiny_policy

BUILT = ("reward_training.pairs=256", "reward_training.val_pairs=64")


def configured(root: Path, *overrides: str) -> RunConfig:
    """Sums, and an untrained policy of 32 numbers per token: what is learnt here is only that it learns."""
    settings = [
        f"trainer.default_local_dir={root}",
        "reward_training.enable=true",
        *(() if any("files" in entry for entry in overrides) else BUILT),
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
    pairs = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "+="} for a in range(10) for b in range(10)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    files = f"reward_training.train_files=[{file}]", f"reward_training.val_files=[{file}]"
    config = configured(tmp_path, *files)
    made = train_reward_model(config, tmp_path / "rm", said.append)
    assert made.accuracy > 0.9  # digits against none: easy to tell
    assert (made.steps, len(said)) == (30, 4)
    model = AutoModelForSequenceClassification.from_pretrained(made.path)
    assert (model.config.num_labels, model.config.architectures) == (1, ["LlamaForSequenceClassification"])
    assert AutoTokenizer.from_pretrained(made.path).get_vocab()
    assert not list(tmp_path.glob(".rm*"))
    again = train_reward_model(config, tmp_path / "rm", said.append)
    assert (again.sha256, len(said)) == (made.sha256, 4)
    other = configured(tmp_path, *files, "reward_training.seed=2")
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


def test_pairs_of_files_without_any_to_judge_by(tmp_path: Path) -> None:
    """In the order of the files; a number that is not there is left out of the curve: JSON has no NaN."""
    files = []
    for name, right, wrong in (("a", "7", "8"), ("b", "8", "7")):
        files.append(str(tmp_path / f"{name}.jsonl"))
        Path(files[-1]).write_text(json.dumps({"prompt": "3+4=", "chosen": right, "rejected": wrong}) + "\n")
    config = configured(tmp_path)
    training = config.reward_training
    training.train_files, training.steps, training.batch_size, training.save_freq = files, 2, 2, 1
    assert [record["chosen"] for _, record in _records(config)[0]] == ["7", "8"]
    made = train_reward_model(config, tmp_path / "rm", lambda line: None)
    assert math.isnan(made.loss)
    assert math.isnan(made.accuracy)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    curve = (Path(made.path) / "curve.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in curve]
    assert [row["step"] for row in rows] == [0.0, 1.0, 2.0]
    assert "train/loss" in rows[1]
    assert not any(key.startswith("val/") for row in rows for key in row)


def test_pairs_have_the_form_in_which_responses_are_scored(tmp_path: Path) -> None:
    """The policy's ids for a model of its vocabulary, whose own template does not matter; else its own template."""
    config = configured(tmp_path)
    policy = load_tokenizer(config.actor_rollout_ref.model.path)
    chat = [{"role": "user", "content": "3+4="}]
    known = recipe_of(config)["template"]
    sampled = [*policy.encode_chat(chat, "").tolist(), *policy.encode("7"), policy.eos_token_id]
    for name, added, expected in (("same", [], sampled), ("other", ["<judge>"], [])):
        base = Path(shutil.copytree(config.actor_rollout_ref.model.path, tmp_path / name))
        inner = load_tokenizer(str(base)).inner
        inner.add_tokens(added)
        inner.chat_template = "{% for m in messages %}{{ m['content'] }};{% endfor %}"
        inner.save_pretrained(base)
        config.reward_training.model_path = str(base)
        tokenizer, encode = form_of(config)
        assert encode(chat, "7", "stop", "").tolist() == (expected or tokenizer.encode("3+4=;7;"))
        assert (recipe_of(config)["template"] == known) is (name == "same")


def test_it_must_be_asked_for(tmp_path: Path) -> None:
    config = configured(tmp_path)
    config.reward_training.enable = False
    with pytest.raises(ConfigError, match=r"reward_training\.enable is false"):
        train_reward_model(config, tmp_path / "rm")
    config.reward_training.enable, config.reward_training.model_path = True, str(tmp_path / "none")
    with pytest.raises(ModelError, match=r"reward_training\.model_path='.*none' is not a model folder"):
        train_reward_model(config, tmp_path / "rm")

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from verl_core.config.schema import PrepareConfig, RunConfig, WarmStartConfig
from verl_core.data.tokenizer import load_tokenizer
from verl_core.errors import DataError
from verl_core.warm_start.examples import examples_of, pad
from verl_core.warm_start.recipe import _curriculum, _task_rows, recipe_of, warm_start
from verl_core.warm_start.sft import accuracy


def config_of(**settings: float | int) -> RunConfig:
    config = RunConfig()
    config.data.prepare = PrepareConfig(task="one_digit_sums", train_size=512, val_size=100)
    config.warm_start = WarmStartConfig(enable=True, hidden_size=32, num_layers=1, batch_size=64, lr=1e-2)
    for name, value in settings.items():
        setattr(config.warm_start, name, value)
    return config


def test_the_result_tells_the_truth_about_the_folder(tmp_path: Path) -> None:
    config, lines = config_of(target_accuracy=0.1, steps=150), []
    result = warm_start(config, tmp_path / "policy", lines.append)
    assert result.sampled_accuracy >= 0.1
    assert 0 < result.steps < 150
    tokenizer = load_tokenizer(result.path)
    rows = [row for split in _task_rows(config.data) for row in split]
    batch = pad(examples_of(rows, tokenizer), tokenizer.inner.pad_token_id)
    found = accuracy(AutoModelForCausalLM.from_pretrained(result.path), batch)
    assert found.sampled == pytest.approx(result.sampled_accuracy, rel=1e-5)
    assert found.greedy == pytest.approx(result.greedy_accuracy)
    assert lines[0].startswith("warm start: step 0/150")
    assert "at most" in lines[0]
    assert f"step {result.steps}/150" in lines[-1]


def test_equal_settings_give_equal_weights(tmp_path: Path) -> None:
    first = warm_start(config_of(steps=3), tmp_path / "a", lambda line: None)
    again = warm_start(config_of(steps=3), tmp_path / "b", lambda line: None)
    other = warm_start(config_of(steps=3, seed=2), tmp_path / "c", lambda line: None)
    assert first.sha256 == again.sha256 != other.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_folder_is_made_once_per_recipe(tmp_path: Path) -> None:
    config, lines = config_of(steps=2), []
    first = warm_start(config, tmp_path / "policy", lines.append)
    said = len(lines)
    assert warm_start(config, tmp_path / "policy", lines.append) == first
    assert len(lines) == said
    config.data.prepare.seed = 2  # other rows: another policy
    second = warm_start(config, tmp_path / "policy", lines.append)
    assert len(lines) > said
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"damaged")
    assert warm_start(config, tmp_path / "policy", lambda line: None).sha256 == second.sha256
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_recipe_names_what_decides_the_weights() -> None:
    config = config_of()
    known = recipe_of(config)
    assert json.loads(json.dumps(known)) == known
    config.warm_start.enable = False
    config.trainer.seed = 99
    assert recipe_of(config) == known
    config.data.prepare.system_prompt = "Add."
    assert recipe_of(config) != known


def test_only_the_share_of_the_training_prompts_is_taught(tmp_path: Path) -> None:
    config = config_of(steps=1, task_share=0.5)
    config.data.prepare = PrepareConfig(task="one_digit_sums", train_size=2000, val_size=20, config={"holdout": 20})
    tokenizer = load_tokenizer(warm_start(config, tmp_path / "policy", lambda line: None).path)
    judged, taught = _curriculum(config, tokenizer)
    train_rows, val_rows = _task_rows(config.data)
    assert len(judged) == 100
    assert len(taught) == len(set(taught)) == 40  # half of the 80 pairs that are not held out
    assert set(taught) <= set(examples_of(train_rows, tokenizer))
    assert not set(taught) & set(examples_of(val_rows, tokenizer))
    config.warm_start.seed = 2
    assert _curriculum(config, tokenizer)[1] != taught


def test_rows_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    prompt = [{"role": "user", "content": "5+5="}]
    file.write_text(json.dumps({"data_source": "s", "prompt": prompt, "reward_model": {"ground_truth": "10"}}) + "\n")
    config = config_of(steps=1, task_share=1.0)
    config.data.train_files = [str(file)]
    assert warm_start(config, tmp_path / "policy", lambda line: None).steps == 1


def test_a_share_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leaves none of 100 distinct prompts"):
        warm_start(config_of(task_share=0.001), tmp_path / "policy", lambda line: None)
    assert list(tmp_path.iterdir()) == []

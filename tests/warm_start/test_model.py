from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from verl_core.config.schema.warm_start import WarmStartConfig
from verl_core.errors import ConfigError
from verl_core.models.folder import published, weights_file_sha256
from verl_core.warm_start.model import make_tiny_policy

SMALL = WarmStartConfig(hidden_size=64, num_layers=2)


def test_a_complete_folder(tmp_path: Path) -> None:
    folder = make_tiny_policy(tmp_path / "a" / "policy", SMALL)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["head_dim"]) == (64, 2, 32)
    assert config["tie_word_embeddings"] is False
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == config["eos_token_id"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, config["vocab_size"])
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]
    assert all(path.stat().st_mode & stat.S_IROTH for path in folder.iterdir())


def test_weights_are_a_function_of_the_seed(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    digests = [
        weights_file_sha256(make_tiny_policy(tmp_path / name, WarmStartConfig(hidden_size=32, num_layers=1, seed=seed)))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_impossible_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="multiple of 32, got 40"):
        make_tiny_policy(tmp_path / "policy", WarmStartConfig(hidden_size=40))
    assert list(tmp_path.iterdir()) == []


def fail_half_way(final: Path) -> None:
    with published(final) as scratch:
        (scratch / "half").write_text("half")
        raise OSError("disk full")


def test_publishing_replaces_whole_folders_and_keeps_the_old_one_on_failure(tmp_path: Path) -> None:
    final = tmp_path / "model"
    with published(final) as scratch:
        (scratch / "old").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        fail_half_way(final)
    assert [path.name for path in final.iterdir()] == ["old"]
    with published(final) as scratch:
        (scratch / "new").write_text("new")
    assert [path.name for path in final.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

"""A tiny untrained policy on disk, rows of chats, and a configuration that fits both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.config import RunConfig, resolve
from verl_core.config.schema import WarmStartConfig
from verl_core.warm_start.model import build_model, write_policy
from verl_core.warm_start.tokenizer import make_tokenizer

MakeConfig = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, inner = tmp_path_factory.mktemp("policy"), make_tokenizer()
    write_policy(build_model(inner, WarmStartConfig(hidden_size=32, num_layers=1)), inner, folder)
    return str(folder)


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eleven rows: sums, every third with a second question."""
    rows = []
    for a in range(11):
        chat = [{"role": "user", "content": f"{a}+1="}, {"role": "assistant", "content": str(a + 1)}]
        if a % 3 == 0:
            chat += [{"role": "user", "content": "again?"}, {"role": "assistant", "content": f"yes, {a + 1}"}]
        rows.append(json.dumps({"messages": chat}))
    file = tmp_path_factory.mktemp("rows") / "chats.jsonl"
    file.write_text("\n".join(rows) + "\n")
    return str(file)


@pytest.fixture
def sft_config(policy_folder: str, chats: str, tmp_path: Path) -> MakeConfig:
    """Resolved, so checked; keywords are overrides with `__` for the dot."""

    def make(**overrides: Any) -> RunConfig:
        tree = {
            "sft": {"enable": True, "max_length": 64},
            "data": {"train_files": [chats], "val_files": [chats], "train_batch_size": 4},
            "actor_rollout_ref": {
                "model": {"path": policy_folder},
                "actor": {
                    "ppo_max_token_len_per_gpu": 64,
                    "optim": {"lr": 1e-2, "eps": 1e-5, "lr_scheduler_type": "cosine"},
                },
            },
            "trainer": {
                "device": "cpu",
                "default_local_dir": str(tmp_path),
                "experiment_name": "sft",
                "total_epochs": 2,
                "save_freq": 2,
                "test_freq": 3,
                "logger": ["jsonl"],
            },
        }
        given = [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in overrides.items()]
        return resolve(tree, given).config

    return make

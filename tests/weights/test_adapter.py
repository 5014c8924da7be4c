"""The adapter as both ends see it: by which way it travels, how much room a server keeps, what survives the wire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import save_file

from verl_core.config.schema import RunConfig
from verl_core.errors import ModelError
from verl_core.weights.adapter import AdapterSpec, adapter_of, read_adapter, served_adapter, server_rank
from verl_core.weights.sender import run_backend

ERRORS = Path(__file__).resolve().parents[2] / "docs/errors.md"


@pytest.mark.parametrize(
    ("merge", "nodes", "device", "asked", "backend"),
    [
        (False, 1, "cuda", "auto", "shm"),
        (False, 2, "cuda", "auto", "store"),
        (False, 1, "cpu", "auto", "shm"),
        (False, 1, "cuda", "store", "store"),
        (True, 1, "cuda", "auto", "ipc"),
        (True, 2, "cuda", "auto", "ipc"),
        (True, 1, "cpu", "auto", "shm"),
    ],
)
def test_an_adapter_goes_through_the_host_whatever_the_device(
    merge: bool, nodes: int, device: str, asked: str, backend: str
) -> None:
    config = RunConfig()
    model = config.actor_rollout_ref.model
    model.lora_rank, model.lora.merge, config.trainer.nnodes = 4, merge, nodes
    config.actor_rollout_ref.rollout.update_weights_backend = asked  # type: ignore[assignment]
    assert run_backend(config, device) == backend
    assert (served_adapter(model) is None) == merge


def test_an_adapter_reaches_servers_on_hosts_of_their_own() -> None:
    """In separate_async their devices may be on any node (`placement.place`), beside a trainer on one."""
    config = RunConfig()
    config.actor_rollout_ref.model.lora_rank, config.trainer.v1.trainer_mode = 4, "separate_async"
    assert run_backend(config, "cpu") == "shm"
    config.actor_rollout_ref.rollout.nnodes = 1
    assert run_backend(config, "cuda") == "store"
    config.actor_rollout_ref.model.lora.merge = True
    assert run_backend(config, "cuda") == "nccl"


def test_no_rank_is_no_adapter() -> None:
    assert adapter_of(RunConfig().actor_rollout_ref.model) is None


def test_a_server_keeps_room_for_the_next_rank_it_knows() -> None:
    assert [server_rank(rank) for rank in (1, 2, 8, 9, 33, 512)] == [1, 8, 8, 16, 64, 512]


def test_the_settings_survive_json() -> None:
    spec = AdapterSpec(4, 8, ("q_proj",), ("k_proj",), "somewhere")
    assert AdapterSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.scaling == 2.0


LINEAR = ["layers.0.q_proj", "layers.0.k_proj", "layers.1.q_proj", "layers.1.k_proj"]


def test_which_modules_carry_an_adapter() -> None:
    assert AdapterSpec(4, 8, ("all-linear",), ("1.q_proj",)).modules(LINEAR) == [LINEAR[0], LINEAR[1], LINEAR[3]]
    with pytest.raises(ModelError, match=r"exclude_modules: 'k_proj' is none of those that .*target_modules names"):
        AdapterSpec(4, 8, ("q_proj",), ("k_proj",)).modules(LINEAR)
    with pytest.raises(ModelError, match="the model has no linear layer that an adapter fits"):
        AdapterSpec(4, 8, ("all-linear",)).modules([])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("use_rslora", True),
        ("alpha_pattern", {"q_proj": 32}),
        ("use_dora", True),
        ("init_lora_weights", "pissa"),
        ("bias", "all"),
        ("peft_type", "IA3"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, setting: str, value: object) -> None:
    """Written by peft; read as alpha / rank x B A it would be another model (rsLoRA: alpha / sqrt(rank))."""
    LoraConfig(r=4, lora_alpha=8).save_pretrained(str(tmp_path))
    save_file({"base_model.model.q_proj.lora_A.weight": torch.zeros(4, 2)}, tmp_path / "adapter_model.safetensors")
    assert list(read_adapter(tmp_path)) == ["q_proj.lora_A.weight"]
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), setting: value}))
    with pytest.raises(ModelError, match=rf"is not W \+ alpha / rank x B A: .* {setting}=.*Merge it into") as caught:
        read_adapter(tmp_path)
    if setting == "use_rslora":
        assert f"```text\n{caught.value}\n```".replace(str(tmp_path), "<adapter>") in ERRORS.read_text()

"""The adapter as both ends see it: by which way it travels, how much room a server keeps, what survives the wire."""

from __future__ import annotations

import json

import pytest

from verl_core.config.schema import RunConfig
from verl_core.weights.adapter import AdapterSpec, adapter_of, served_adapter, server_rank
from verl_core.weights.sender import run_backend


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


def test_no_rank_is_no_adapter() -> None:
    assert adapter_of(RunConfig().actor_rollout_ref.model) is None


def test_a_server_keeps_room_for_the_next_rank_it_knows() -> None:
    assert [server_rank(rank) for rank in (1, 2, 8, 9, 33, 512)] == [1, 8, 8, 16, 64, 512]


def test_the_settings_survive_json() -> None:
    spec = AdapterSpec(4, 8, ("q_proj",), ("k_proj",), "somewhere")
    assert AdapterSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.scaling == 2.0

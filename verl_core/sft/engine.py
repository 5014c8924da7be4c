"""The engine of a fine-tuning run. Invariant: one rank on a CPU needs no Ray; more ranks, and GPUs, are Ray actors with
a device each, and too few devices are an error before any actor is asked for."""

from __future__ import annotations

from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.engine.interface import PolicyEngine
from verl_core.engine.sft_engine import LocalSft, SftGroup
from verl_core.errors import ResourceError
from verl_core.trainer.placement import device_of
from verl_core.trainer.ray_session import namespace_of, start_ray


def open_engine(config: RunConfig, total_steps: int) -> PolicyEngine:
    """The policy at its start; the caller shuts it down.

    Raises:
        ModelError: the model cannot be used.
        ResourceError: fewer GPUs than ranks.
    """
    if config.world_size == 1 and config.trainer.device == "cpu":
        return LocalSft(config, total_steps, "")
    import ray

    start_ray(config)
    device = device_of(config)
    if config.world_size == 1 and device == "cpu":
        return LocalSft(config, total_steps, "")
    if device == "cuda" and ray.cluster_resources().get("GPU", 0) < config.world_size:
        raise ResourceError(
            f"fine-tuning on {config.world_size} GPUs (trainer.nnodes x trainer.n_gpus_per_node): Ray has "
            f"{ray.cluster_resources().get('GPU', 0):g}. Ask for more in ray.*, or lower trainer.n_gpus_per_node"
        )

    def options(rank: int) -> dict[str, Any]:
        return {"num_gpus": 1} if device == "cuda" else {}

    return SftGroup.attach_or_launch(config, namespace_of(config), total_steps, options, "", device)

"""Which devices an actor gets. Invariant: too few devices is an error before any actor is asked for, never a silent
queue.

On a CPU every actor asks for 0 CPUs: nothing can queue, and the operating system shares the cores. On GPUs policy
ranks and servers of the colocated modes share one placement group, one bundle per device; each takes a fraction of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import ResourceError

ActorOptions = Callable[[int], dict[str, Any]]
_POLICY_SHARE, _SERVER_SHARE = 0.6, 0.4  # of one device; Ray only counts, memory is shared by sleeping and waking


def device_of(config: RunConfig) -> str:
    """`cpu` or `cuda`: what trainer.device means here. Asks Ray's view when connected, else this host's drivers."""
    if config.trainer.device != "auto":
        return config.trainer.device
    return "cuda" if cluster_devices()[1] > 0 else "cpu"


def cluster_devices() -> tuple[int, int]:
    """(CPUs, GPUs) of the connected Ray cluster, or of this host when Ray is not up."""
    import ray

    if ray.is_initialized():
        total: Mapping[str, float] = ray.cluster_resources()
        return int(total.get("CPU", 0)), int(total.get("GPU", 0))
    import torch

    return os.cpu_count() or 1, torch.cuda.device_count()


@dataclass(frozen=True)
class Placement:
    """Ray options for the actors of one run.

    Attributes:
        device: `cpu` or `cuda`.
        policy: options of policy rank i.
        server: options of inference server i.
        num_servers: how many servers to start.
    """

    device: str
    policy: ActorOptions
    server: ActorOptions
    num_servers: int


def place(config: RunConfig) -> Placement:
    """Check that the devices exist, reserve them, and say who sits where.

    Raises:
        ResourceError: fewer devices than trainer.nnodes x trainer.n_gpus_per_node, or servers that do not divide them.
    """
    cpus, gpus = cluster_devices()
    ranks, rollout = config.world_size, config.actor_rollout_ref.rollout
    device = device_of(config)
    have = gpus if device == "cuda" else cpus
    if ranks > have:
        raise ResourceError(
            f"trainer.nnodes x trainer.n_gpus_per_node asks for {ranks} {device} devices, the cluster has {have}. "
            f"Lower trainer.n_gpus_per_node, or run where there are {ranks}."
        )
    if device == "cpu":
        return Placement(device, lambda _: {"num_cpus": 0}, lambda _: {"num_cpus": 0}, rollout.num_servers or 1)
    size = rollout.tensor_model_parallel_size
    servers = rollout.num_servers or ranks // size
    if servers * size > ranks or servers < 1:
        raise ResourceError(
            f"{servers} servers x tensor_model_parallel_size {size} need {servers * size} devices, sync mode shares "
            f"the trainer's {ranks}. Lower rollout.num_servers or rollout.tensor_model_parallel_size."
        )
    return _on_gpus(config, ranks, servers, size)


def _on_gpus(config: RunConfig, ranks: int, servers: int, size: int) -> Placement:
    """One bundle per device; server i leads on bundle i x size and reaches its other devices through
    CUDA_VISIBLE_DEVICES, which vLLM sets from the placement group it runs in."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"GPU": 1, "CPU": 1}] * ranks, strategy="PACK", lifetime="detached")
    wait = Deadline("the placement group of the trainer's devices", config.trainer.init_timeout_s)
    if not ray.wait([group.ready()], timeout=wait.left)[0]:
        raise ResourceError(f"could not reserve {ranks} devices: {ray.available_resources()} are free right now")

    def at(bundle: int, share: float) -> dict[str, Any]:
        strategy = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
        )
        return {"num_cpus": 0, "num_gpus": share, "scheduling_strategy": strategy}

    return Placement(
        "cuda",
        lambda rank: at(rank, _POLICY_SHARE),
        lambda index: at(index * size, _SERVER_SHARE),
        servers,
    )

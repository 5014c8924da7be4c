"""From `ray.*` of the configuration to the RayJob that Flyte asks KubeRay for.

Invariant: devices are asked for by head and worker groups only. The pod that submits the job is made from the task's
own resources, so a GPU there would be held by a pod that only waits.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from flytekit import Resources
from flytekitplugins.ray import HeadNodeConfig, WorkerNodeConfig

from tasks.ray_job import RayTaskConfig
from verl_core.config.schema import GroupConfig, RayConfig

C = TypeVar("C", bound=RayTaskConfig)

DRIVER = Resources(cpu="1", mem="4Gi")  # a step's driver: tokenizer, data columns, one batch
SUBMITTER = Resources(cpu="1", mem="1Gi")  # the pod that submits a RayJob and waits for it


def ray_config(config: RayConfig, kind: type[C], pods: GroupConfig | None = None) -> C:
    """The Ray cluster of one task.

    Args:
        config: `ray.*`; a worker group of 0 replicas leaves all the work to the head.
        kind: RayTaskConfig or a subclass of it, which decides how the task runs locally.
        pods: the worker group; default: ray.worker.
    """
    group = pods or config.worker
    workers = [_worker(group)] if group.replicas > 0 else []
    return kind(
        head_node_config=HeadNodeConfig(ray_start_params=_start_params(config.head), requests=_resources(config.head)),
        worker_node_config=workers,
        shutdown_after_job_finishes=True,
        ttl_seconds_after_finished=0,  # the platform's default keeps the GPUs for an hour after the end
    )


def limit(config: RayConfig) -> timedelta:
    """How long one attempt of any node of the run may take."""
    return timedelta(hours=config.max_hours)


def _worker(group: GroupConfig) -> WorkerNodeConfig:
    return WorkerNodeConfig(
        group_name="worker",
        replicas=group.replicas,
        min_replicas=group.replicas,
        max_replicas=group.replicas,
        ray_start_params=_start_params(group),
        requests=_resources(group),
    )


def _start_params(group: GroupConfig) -> dict[str, str]:
    """Explicit for every group: up to Flyte 1.16.8 the parameters of one RayJob leak into another that has none."""
    return {"dashboard-host": "0.0.0.0", "num-gpus": str(group.gpu)}


def _resources(group: GroupConfig) -> Resources:
    gpu = str(group.gpu) if group.gpu else None
    return Resources(cpu=group.cpu, mem=group.mem, gpu=gpu)

"""From `ray.*` to the RayJob, as the JSON that Flyte sends to KubeRay."""

from __future__ import annotations

from typing import Any

from flytekit.configuration import Image, ImageConfig, SerializationSettings

from tasks.cluster import hold_cluster
from tasks.ray_config import SUBMITTER, ray_config
from tasks.ray_job import RayTask, RayTaskConfig
from tasks.streaming import StreamingRayConfig
from verl_core.config.schema import GroupConfig, RayConfig

SETTINGS = SerializationSettings(image_config=ImageConfig(Image("default", "registry.invalid/verl-flyte", "t")))
EIGHT_GPUS = RayConfig(
    head=GroupConfig(cpu="4", mem="16Gi"), worker=GroupConfig(cpu="32", mem="400Gi", gpu=8, replicas=2)
)


def job_of(config: RayConfig) -> dict[str, Any]:
    """The custom part of a task whose cluster is `config`."""
    task = RayTask(ray_config(config, RayTaskConfig), _body, requests=SUBMITTER)
    return task.get_custom(SETTINGS)


def _body(config: dict) -> int:
    return len(config)


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["k8sPod"]["podSpec"]["containers"]
    return only


def test_devices_are_in_the_worker_group_only() -> None:
    cluster = job_of(EIGHT_GPUS)["rayCluster"]
    (workers,) = cluster["workerGroupSpec"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    assert container(workers)["resources"]["requests"] == {"cpu": "32", "memory": "400Gi", "nvidia.com/gpu": "8"}
    assert container(workers)["resources"]["limits"] == container(workers)["resources"]["requests"]
    assert "gpu" not in str(container(cluster["headGroupSpec"])["resources"])


def test_containers_have_the_names_that_the_plugin_looks_for() -> None:
    cluster = job_of(EIGHT_GPUS)["rayCluster"]
    assert container(cluster["headGroupSpec"])["name"] == "ray-head"
    assert container(cluster["workerGroupSpec"][0])["name"] == "ray-worker"


def test_start_parameters_are_explicit_for_every_group() -> None:
    cluster = job_of(EIGHT_GPUS)["rayCluster"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert cluster["workerGroupSpec"][0]["rayStartParams"]["num-gpus"] == "8"


def test_the_cluster_ends_with_the_job() -> None:
    job = job_of(EIGHT_GPUS)
    assert job["shutdownAfterJobFinishes"] is True
    assert job.get("ttlSecondsAfterFinished", 0) == 0
    assert "runtimeEnv" not in job  # a working_dir there cannot be merged with the plugin's own


def test_no_workers_leaves_the_head_alone() -> None:
    config = RayConfig(head=GroupConfig(gpu=1), worker=GroupConfig(replicas=0))
    cluster = job_of(config)["rayCluster"]
    assert "workerGroupSpec" not in cluster
    assert container(cluster["headGroupSpec"])["resources"]["requests"]["nvidia.com/gpu"] == "1"


def test_the_submitting_pod_asks_for_no_device() -> None:
    requests = hold_cluster.get_container(SETTINGS).resources.requests
    assert {entry.name for entry in requests} == {1, 3}  # CPU and MEMORY of flyteidl's ResourceName
    assert all(float(entry.value.removesuffix("Gi")) <= 1 for entry in requests)


def test_the_streaming_kind_makes_the_same_job() -> None:
    streaming = RayTask(ray_config(EIGHT_GPUS, StreamingRayConfig), _body, requests=SUBMITTER)
    assert streaming.get_custom(SETTINGS) == job_of(EIGHT_GPUS)

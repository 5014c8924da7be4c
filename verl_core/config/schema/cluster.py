"""`ray.*`: the Ray cluster a Flyte task asks for. Without effect on a laptop, where the process' own Ray is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class GroupConfig:
    """Resources of each pod of a Ray group, as Kubernetes writes them; `gpu` counts devices."""

    cpu: str = "4"
    mem: str = "16Gi"
    gpu: int = 0
    replicas: int = 1


@dataclass
class RayConfig:
    """Attributes:
    mode: `shared` = one task holds the cluster and step nodes attach to it; `per_task` = each stage is its own RayJob;
        `split` = separate_async as two RayJobs, one that generates and one that trains.
    rollout: split only: workers of the cluster that generates. Its head is like that of the other one.
    max_hours: longest time of one attempt of any node, the task that holds the cluster included.
    up_timeout_s: how long nodes wait for the cluster (its pods queue for devices and pull images), and the cluster for
        a node.
    """

    mode: Literal["shared", "per_task", "split"] = "shared"
    head: GroupConfig = field(default_factory=GroupConfig)
    worker: GroupConfig = field(default_factory=GroupConfig)
    rollout: GroupConfig = field(default_factory=GroupConfig)
    max_hours: float = 168.0
    up_timeout_s: float = 3600.0

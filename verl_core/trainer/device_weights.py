"""Tying the policy's ranks to the servers for weight transports between devices.

Invariant: on a CPU nothing happens here: weights go through shared memory and need no acquaintance. Device transports
need GPUs and were not run where this was written; what is decided here without one is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.engine.publishing import Named
from verl_core.engine.worker_group import PolicyGroup
from verl_core.rollout.servers import Servers
from verl_core.weights.device import DeviceBackend, DeviceGroup
from verl_core.weights.interface import WeightSender
from verl_core.weights.layout import layout_of
from verl_core.weights.sender import run_backend, sender_for


@dataclass(frozen=True)
class DeviceSenderFactory:
    """Pickled to every rank; makes the rank's sender at its first publication.

    Attributes:
        servers: handles that rank 0 talks to.
        address, port: nccl only: where rank 0 is met.
    """

    backend: DeviceBackend
    servers: tuple[Any, ...]
    workers_per_server: int
    bucket_bytes: int
    address: str = ""
    port: int = 0

    def __call__(self, rank: int, named: Named) -> WeightSender | None:
        """The sender of `rank`; every rank takes part in the gathers."""
        group = DeviceGroup(
            self.backend, rank, self.servers if rank == 0 else (), self.workers_per_server, self.address, self.port
        )
        specs = layout_of(list(named), self.bucket_bytes).tensors
        return sender_for(self.backend, self.bucket_bytes, group=group, specs=specs)


def connect_devices(config: RunConfig, device: str, policy: PolicyGroup, servers: Servers) -> None:
    """Give the policy a sender to the servers when weights go from device to device; nothing otherwise."""
    rollout = config.actor_rollout_ref.rollout
    backend = run_backend(config, device)
    if backend == "shm" or backend == "store":
        return
    address, port = policy.meeting_point() if backend == "nccl" else ("", 0)
    policy.use_sender(
        DeviceSenderFactory(
            backend,
            tuple(servers.transfer_servers()),
            rollout.tensor_model_parallel_size,
            rollout.update_weights_bucket_megabytes * 2**20,
            address,
            port,
        )
    )

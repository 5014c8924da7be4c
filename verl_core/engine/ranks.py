"""Ranks: the process group of the policy workers. Invariant: with one rank there is no group and no collective; with
more, every collective has the group's time limit, and a dead peer is an error on the others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among the ranks.

    Attributes:
        mesh: one-dimensional, of all ranks; None when alone.
    """

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh | None = None

    @classmethod
    def alone(cls, device: torch.device) -> Ranks:
        """The only rank."""
        return cls(0, 1, device)

    @classmethod
    def join(cls, rank: int, world: int, device: torch.device, store: TCPStore, timeout_s: float) -> Ranks:
        """Enter the group behind `store`: gloo on CPUs, nccl on GPUs. Returns when all have entered."""
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "nccl",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
            device_id=None if device.type == "cpu" else device,
        )
        return cls(rank, world, device, init_device_mesh(device.type, (world,)))

    def total(self, values: dict[str, float]) -> dict[str, float]:
        """Sum over ranks, key by key, in float64. All ranks give the same keys."""
        if self.mesh is None:
            return dict(values)
        names = sorted(values)
        packed = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(packed)
        return dict(zip(names, packed.tolist(), strict=True))

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank. For rare and small things."""
        if self.mesh is None:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def leave(self) -> None:
        """End the group."""
        if self.mesh is not None:
            dist.destroy_process_group()


def open_store(host: str, port: int, world: int, master: bool, timeout_s: float) -> TCPStore:
    """The rendezvous. The master gives port 0 and reads the port that the kernel chose from `.port`, so none can be
    taken.
    """
    limit = timedelta(seconds=timeout_s)
    return TCPStore(host, port, world, is_master=master, timeout=limit, wait_for_workers=False)

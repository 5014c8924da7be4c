"""Away: a rollout side in another Ray cluster, as its offer in the link describes it.

Invariant: a trainer that works with a side that is away starts no server, no agent worker and no store of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.rollout.port import PortAddress, PortClient
from verl_core.transfer.endpoint import Endpoint
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.tq_store import TransferQueueStore


@dataclass(frozen=True)
class Away:
    """Attributes:
    port: where commands go.
    store: where trajectories are.
    check: raises when the side is known to be gone.
    """

    port: PortAddress
    store: Endpoint
    check: Callable[[], None] = lambda: None

    @classmethod
    def from_offer(cls, offer: Mapping[str, Any], check: Callable[[], None]) -> Away:
        """Inverse of `to_offer`. Raises StoreError for an endpoint of another version."""
        return cls(PortAddress(**offer["port"]), Endpoint.from_dict(dict(offer["store"])), check)

    def to_offer(self) -> dict[str, Any]:
        """JSON values."""
        return {"port": self.port.to_dict(), "store": self.store.to_dict()}

    def client(self) -> PortClient:
        """A new connection to the port."""
        return PortClient(self.port, self.check)

    def stores(self, config: RunConfig) -> tuple[TrajectoryStore, TrajectoryStore]:
        """Two connections to the store, for training and for validation."""
        timeout = config.trainer.v1.buffer.call_timeout_s
        return TransferQueueStore.join(self.store, timeout), TransferQueueStore.join(self.store, timeout)

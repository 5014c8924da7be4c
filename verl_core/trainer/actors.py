"""RunActors: everything that runs in Ray for one run. Invariant: parts start side by side, and a part that cannot
start ends the others with its own error."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from verl_core.config.schema import RunConfig
from verl_core.engine.worker_group import PolicyGroup
from verl_core.reward.workers import RewardWorkers
from verl_core.rollout.agent_manager import AgentLoopManagerTQ
from verl_core.rollout.legacy_manager import AgentLoopManager
from verl_core.rollout.servers import Servers
from verl_core.trainer.device_weights import connect_devices
from verl_core.trainer.placement import place
from verl_core.trainer.ray_session import namespace_of
from verl_core.trajectory import Prompt
from verl_core.transfer.host import StoreHost
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.tq_store import TransferQueueStore


class Agents(Protocol):
    """What both paths' managers offer."""

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """Fire and forget."""

    def reset(self) -> None:
        """Give up all groups under way: nothing of theirs is published afterwards."""

    def set_servers(self, servers: Mapping[str, Any]) -> None:
        """The pool's members from now on: actor handles by name."""

    def shutdown(self) -> None:
        """Kill the workers."""


@dataclass
class RunActors:
    """The parts, started. `stores` are this process' connections: one for training, one for validation."""

    policy: PolicyGroup
    servers: Servers
    agents: Agents
    scorer: RewardWorkers
    stores: tuple[TrajectoryStore, TrajectoryStore]
    host: StoreHost | None

    def leave(self) -> None:
        """Close this process' connections; the actors live on, for the next process. Idempotent.

        On the legacy path the agent workers belong to this process and end with it.
        """
        if self.host is None:
            self.agents.shutdown()
        for store in self.stores:
            store.close()

    def shutdown(self) -> None:
        """End all of it; the first error is raised after everything was tried."""
        with contextlib.ExitStack() as stack:
            if self.host is not None:
                stack.callback(self.host.shutdown)
            for part in (self.policy, self.servers, self.scorer, self.agents):
                stack.callback(part.shutdown)


def launch_actors(config: RunConfig, total_steps: int, sources: Sequence[str], weights_folder: str) -> RunActors:
    """Attach to the run's actors where they live, launch the rest. Needs a Ray connection.

    Raises:
        ResourceError: too few devices.
        DeadlineExceeded: a part did not come up within trainer.init_timeout_s.
    """
    namespace, placement = namespace_of(config), place(config)
    with ThreadPoolExecutor(4, "launch") as pool:
        policy = pool.submit(
            PolicyGroup.attach_or_launch, config, namespace, total_steps, placement.policy, weights_folder
        )
        servers = pool.submit(
            Servers.attach_or_launch,
            config,
            namespace,
            weights_folder,
            placement.server,
            placement.num_servers,
            placement.device,
        )
        scorer = pool.submit(RewardWorkers.attach_or_launch, config.reward, namespace, sources)
        host = pool.submit(_host, config, namespace)
        stores = _stores(config, host.result())
        agents = _agents(config, namespace, host.result(), stores[0])
        agents.set_servers(servers.result().handles)
        agents.reset()  # warm workers may still run groups of a process that is gone; its uids will come again
        stores[0].reset()
        connect_devices(config, placement.device, policy.result(), servers.result())
        return RunActors(policy.result(), servers.result(), agents, scorer.result(), stores, host.result())


def weights_folder(config: RunConfig) -> str:
    """Where weights are published for servers of this host: shared memory, one folder per run."""
    return f"/dev/shm/{namespace_of(config)}"


def _host(config: RunConfig, namespace: str) -> StoreHost | None:
    """None on the legacy path: nothing of TransferQueue is started or imported there."""
    if not config.trainer.use_v1:
        return None
    return StoreHost.attach_or_launch(config.trainer.v1.buffer, config.trainer.init_timeout_s, namespace)


def _stores(config: RunConfig, host: StoreHost | None) -> tuple[TrajectoryStore, TrajectoryStore]:
    if host is None:
        store = MemoryStore()
        return store, store
    timeout = config.trainer.v1.buffer.call_timeout_s
    return TransferQueueStore.join(host.endpoint, timeout), TransferQueueStore.join(host.endpoint, timeout)


def _agents(config: RunConfig, namespace: str, host: StoreHost | None, store: TrajectoryStore) -> Agents:
    """Without servers yet, so that they start beside them."""
    if host is None:
        return AgentLoopManager.launch(config, namespace, {}, store)
    return AgentLoopManagerTQ.attach_or_launch(config, namespace, host.endpoint, {})

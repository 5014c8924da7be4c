"""RunActors: everything that runs in Ray for one run. Invariant: parts start side by side, and when one cannot start,
all are ended and its error is raised: nothing runs that no `RunActors` knows of."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayError

from verl_core.config.schema import RunConfig
from verl_core.engine.worker_group import CriticGroup, PolicyGroup
from verl_core.errors import VerlError
from verl_core.record.rundir import RunDir
from verl_core.reward.interface import Scorer
from verl_core.rollout.agent_manager import AgentLoopManagerTQ
from verl_core.rollout.legacy_manager import AgentLoopManager
from verl_core.rollout.remote import RemoteAgents, RemoteServers
from verl_core.rollout.servers import Servers
from verl_core.rollout.teachers.group import Teachers
from verl_core.trainer.away import Away
from verl_core.trainer.device_weights import connect_devices
from verl_core.trainer.ground import Ground
from verl_core.trainer.placement import place, place_teachers
from verl_core.trainer.ray_session import namespace_of, run_root
from verl_core.trainer.scoring import launch_scoring
from verl_core.trajectory import Prompt
from verl_core.transfer.host import StoreHost
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.tq_store import TransferQueueStore
from verl_core.weights import shm
from verl_core.weights.sender import is_stored

logger = logging.getLogger(__name__)
_Connected = tuple["Agents", tuple[TrajectoryStore, TrajectoryStore]]  # agents, and this process' stores


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
    """The parts, started. `stores` are this process' connections: one for training, one for validation; `lent` are
    servers on the trainer's devices, which join the others while the trainer is idle; `critic` is there where the
    estimator needs one, `teachers` with distillation."""

    policy: PolicyGroup
    servers: Servers
    agents: Agents
    scorer: Scorer
    stores: tuple[TrajectoryStore, TrajectoryStore]
    host: StoreHost | None
    ground: Ground
    lent: Servers | None = None
    critic: CriticGroup | None = None
    teachers: Teachers | None = None

    def leave(self) -> None:
        """Close this process' connections; the actors live on, for the next process. Idempotent.

        On the legacy path the agent workers belong to this process and end with it.
        """
        if self.host is None:
            self.agents.shutdown()
        for store in self.stores:
            store.close()

    def shutdown(self) -> None:
        """End all of it; an error is raised after everything was tried."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.ground.clear)
            if self.host is not None:
                stack.callback(self.host.shutdown)
            for part in (self.policy, self.critic, self.servers, self.lent, self.teachers, self.scorer, self.agents):
                if part is not None:
                    stack.callback(part.shutdown)


def launch_actors(
    config: RunConfig, total_steps: int, sources: Sequence[str], weights_folder: str, away: Away | None = None
) -> RunActors:
    """Attach to the run's actors where they live, launch the rest. Needs a Ray connection.

    Args:
        weights_folder: where the policy publishes.
        away: the rollout side, when another Ray cluster has it.

    Raises:
        ConfigError, ResourceError: the devices cannot be had; nothing was started.
        DeadlineExceeded: a part did not come up within trainer.init_timeout_s.
        VerlError: the first that kept a part from starting.
    """
    placement = place(config, "all" if away is None else "trainer")
    ground = Ground(namespace_of(config), weights_folder, placement)
    with ThreadPoolExecutor(8, "launch") as pool:
        launch = _begin(pool, config, total_steps, sources, ground, away)
        try:
            for part in as_completed(launch.parts()):
                part.result()
            actors = launch.actors(ground)
            actors.agents.set_servers(actors.servers.handles)
            actors.agents.reset()  # warm workers may still run groups of a process that is gone; its uids come again
            actors.stores[0].reset()
            connect_devices(config, placement.device, actors.policy, actors.servers)
        except BaseException:
            launch.abandon(ground)
            raise
    return actors


def weights_folder(config: RunConfig) -> str:
    """Where weights are published: in shared memory for servers of this host, one folder per run; in the run directory
    for those that are elsewhere."""
    if is_stored(config):
        return RunDir(run_root(config)).url("weights")
    return str(shm.weights_folder(namespace_of(config)))


@dataclass(frozen=True)
class _Launch:
    """The parts on their way up. `agents` come with this process' connections to the store."""

    policy: Future[PolicyGroup]
    servers: Future[Servers]
    host: Future[StoreHost | None]
    agents: Future[_Connected]
    scorer: Future[Scorer]
    lent: Future[Servers | None]
    critic: Future[CriticGroup | None]
    teachers: Future[Teachers | None]

    def parts(self) -> list[Future[Any]]:
        """All of them."""
        return [self.policy, self.critic, self.servers, self.lent, self.teachers, self.scorer, self.host, self.agents]

    def actors(self, ground: Ground) -> RunActors:
        """When all are up."""
        agents, stores = self.agents.result()
        policy, servers, scorer = self.policy.result(), self.servers.result(), self.scorer.result()
        host, lent, critic = self.host.result(), self.lent.result(), self.critic.result()
        return RunActors(policy, servers, agents, scorer, stores, host, ground, lent, critic, self.teachers.result())

    def abandon(self, ground: Ground) -> None:
        """Wait for those still on their way, then end everything. Errors are logged: another one is on its way up."""
        wait(self.parts())
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(ground.clear)
                if self.agents.exception() is None:
                    agents, stores = self.agents.result()
                    for close in (stores[0].close, stores[1].close, agents.shutdown):
                        stack.callback(close)
        except (VerlError, RayError):
            logger.exception("ending the parts of a run that could not start")


def _begin(
    pool: ThreadPoolExecutor,
    config: RunConfig,
    total_steps: int,
    sources: Sequence[str],
    ground: Ground,
    away: Away | None,
) -> _Launch:
    namespace, folder, placement = ground.namespace, ground.weights_folder, ground.placement
    policy = pool.submit(
        PolicyGroup.attach_or_launch, config, namespace, total_steps, placement.policy, folder, placement.device
    )
    scorer = pool.submit(launch_scoring, config, ground, sources)
    lent, critic = pool.submit(_lent, config, ground), pool.submit(_critic, config, total_steps, ground)
    teachers = pool.submit(_teachers, config, ground)
    if away is not None:
        return _Launch(policy, *_far(pool, config, away), scorer=scorer, lent=lent, critic=critic, teachers=teachers)
    host = pool.submit(_host, config, namespace)
    return _Launch(
        policy=policy,
        servers=pool.submit(_servers, config, ground),
        host=host,
        agents=pool.submit(lambda: _agents(config, namespace, host.result())),
        scorer=scorer,
        lent=lent,
        critic=critic,
        teachers=teachers,
    )


def _far(
    pool: ThreadPoolExecutor, config: RunConfig, away: Away
) -> tuple[Future[Servers], Future[StoreHost | None], Future[_Connected]]:
    """What stands for a rollout side in another cluster; nothing is started."""
    client = away.client()
    servers: Future[Servers] = pool.submit(lambda: RemoteServers(config, client))
    host: Future[StoreHost | None] = pool.submit(lambda: None)
    return servers, host, pool.submit(lambda: (RemoteAgents(client), away.stores(config)))


def _critic(config: RunConfig, total_steps: int, ground: Ground) -> CriticGroup | None:
    if not config.needs_critic:
        return None
    placement = ground.placement
    return CriticGroup.attach_or_launch(config, ground.namespace, total_steps, placement.critic, placement.device)


def _teachers(config: RunConfig, ground: Ground) -> Teachers | None:
    if not config.distillation.enabled:
        return None
    options = place_teachers(config, ground.placement)
    return Teachers.attach_or_launch(config, ground.namespace, ground.placement.device, options)


def _servers(config: RunConfig, ground: Ground) -> Servers:
    placement = ground.placement
    return Servers.attach_or_launch(
        config,
        ground.namespace,
        ground.weights_folder,
        placement.device,
        placement.server,
        num_servers=placement.num_servers,
    )


def _lent(config: RunConfig, ground: Ground) -> Servers | None:
    placement = ground.placement
    if not placement.num_lent:
        return None
    return Servers.attach_or_launch(
        config,
        ground.namespace,
        ground.weights_folder,
        placement.device,
        placement.lent,
        num_servers=placement.num_lent,
        prefix="lent",
    )


def store_host(config: RunConfig, namespace: str) -> StoreHost:
    """The run's store: the running one, or a new one."""
    return StoreHost.attach_or_launch(config.trainer.v1.buffer, config.trainer.init_timeout_s, namespace)


def _host(config: RunConfig, namespace: str) -> StoreHost | None:
    """None on the legacy path: nothing of TransferQueue is started or imported there."""
    return store_host(config, namespace) if config.trainer.use_v1 else None


def _stores(config: RunConfig, host: StoreHost | None) -> tuple[TrajectoryStore, TrajectoryStore]:
    if host is None:
        store = MemoryStore()
        return store, store
    timeout = config.trainer.v1.buffer.call_timeout_s
    return TransferQueueStore.join(host.endpoint, timeout), TransferQueueStore.join(host.endpoint, timeout)


def _agents(config: RunConfig, namespace: str, host: StoreHost | None) -> _Connected:
    """Without servers yet, so that they start beside them."""
    stores = _stores(config, host)
    if host is None:
        return AgentLoopManager.launch(config, namespace, {}, stores[0]), stores
    return AgentLoopManagerTQ.attach_or_launch(config, namespace, host.endpoint, {}), stores

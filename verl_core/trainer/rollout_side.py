"""RolloutSide: the half of an asynchronous run that generates: store, inference servers, agent workers.

Invariant: as long as the side is supervised, a part that is lost for good, or does not come back in time, is an error
within seconds, and what the parts do is told through the link.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ray.util import get_node_ip_address

from verl_core.config.schema import RunConfig
from verl_core.errors import RolloutError, StreamFailed
from verl_core.record.link import Link
from verl_core.rollout.agent_manager import AgentLoopManagerTQ, worker_names
from verl_core.rollout.named_actor import find
from verl_core.rollout.remote import port_of
from verl_core.rollout.servers import Servers
from verl_core.rollout.usage import ServerUsage
from verl_core.trainer.actors import store_host, weights_folder
from verl_core.trainer.away import Away
from verl_core.trainer.ground import Ground
from verl_core.trainer.placement import place
from verl_core.trainer.ray_session import namespace_of
from verl_core.trainer.watch import Watch
from verl_core.transfer.host import CONTROLLER, StoreHost, unit_name

LOOK_S = 2.0
# When parts vanish, the trainer may have ended them because it failed: its own account is awaited for so long.
LAST_WORD_S = 10.0


@dataclass(frozen=True)
class RolloutReport:
    """What the rollout side did.

    Attributes:
        seconds: from the first part being asked for to the end of training.
        tokens: sampled by all servers meanwhile.
        restarts: how often a server was started again.
    """

    seconds: float = 0.0
    tokens: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class RolloutSide:
    """The parts, started. They are detached: they outlive this process until the run's actors are ended."""

    host: StoreHost
    servers: Servers
    agents: AgentLoopManagerTQ
    namespace: str

    @classmethod
    def attach_or_launch(cls, config: RunConfig) -> RolloutSide:
        """Parts of the run that live are kept, the others are started, side by side. Needs a Ray connection.

        Raises:
            ConfigError, ResourceError: the devices cannot be had; nothing was started.
            VerlError: what kept a part from starting; all were ended.
        """
        placement, folder = place(config, "rollout" if config.ray.mode == "split" else "all"), weights_folder(config)
        ground = Ground(namespace_of(config), folder, placement)
        space, device, count = ground.namespace, placement.device, placement.num_servers
        with ThreadPoolExecutor(2, "launch") as pool:
            servers = pool.submit(
                Servers.attach_or_launch, config, space, folder, device, placement.server, num_servers=count
            )
            stored = pool.submit(_store_and_agents, config, space)
            parts: list[Future[Any]] = [servers, stored]
            try:
                host, agents = stored.result()
                agents.set_servers(servers.result().handles)
            except BaseException:
                wait(parts)
                with contextlib.suppress(Exception):  # what kept a part from starting is on its way up
                    ground.clear()
                raise
        return cls(host, servers.result(), agents, space)

    def watch(self, config: RunConfig) -> Watch:
        """Over all parts; one may be away as long as it may take to start."""
        actors: dict[str, tuple[Any, str]] = {name: (one, "ping") for name, one in self.servers.handles.items()}
        for name in worker_names(config):
            actors[name] = (find(name, self.namespace), "health")
        actors[CONTROLLER] = (find(CONTROLLER, self.namespace), "endpoint")
        for number in range(len(self.host.endpoint.units)):
            actors[unit_name(number)] = (find(unit_name(number), self.namespace), "address")
        if lost := [name for name, (handle, _) in actors.items() if handle is None]:
            raise RolloutError(f"{', '.join(lost)} ended while the others started; start the run again")
        return Watch(actors, config.trainer.init_timeout_s)


def _store_and_agents(config: RunConfig, namespace: str) -> tuple[StoreHost, AgentLoopManagerTQ]:
    host = store_host(config, namespace)
    return host, AgentLoopManagerTQ.attach_or_launch(config, namespace, host.endpoint, {})


class Meter:
    """What the servers did since it was made. Counters of a server begin again with each of its lives."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last: dict[str, ServerUsage] = {}
        self._tokens = self._restarts = 0

    def read(self, usage: dict[str, ServerUsage], answers: dict[str, Any]) -> dict[str, Any]:
        """Live numbers, JSON values. tokens_per_s and busy_share are of the time since the last call.

        Args:
            usage: accounts of the servers that answered.
            answers: of `Watch.look`.
        """
        servers, agents = {}, {}
        for name, now in usage.items():
            before = self._last.get(name)
            self._restarts += before is not None and before.life != now.life
            part = now.since(before)
            self._tokens += part.tokens
            rate = part.tokens / part.clock_s if part.clock_s > 0 else 0.0
            servers[name] = {"tokens_per_s": round(rate, 3), "busy_share": round(part.busy_share, 3)}
            if name in answers:
                servers[name]["version"] = answers[name].version
        self._last |= usage
        for name, health in answers.items():
            if name.startswith("agent-"):
                agents[name] = {"running": health.running, "finished": health.finished, "failed": health.failed}
        report = self.report()
        return {"servers": servers, "agents": agents, "tokens": report.tokens, "restarts": report.restarts}

    def report(self) -> RolloutReport:
        """So far."""
        return RolloutReport(time.monotonic() - self._started, self._tokens, self._restarts)


def supervise(config: RunConfig, link: Link) -> RolloutReport:
    """Start the rollout side, offer it to the trainer, and stand by until that one is done.

    Raises:
        StreamFailed: the trainer failed or fell silent.
        DeadlineExceeded: the trainer never came, or a part did not come back.
        RolloutError: a part is lost for good.
        VerlError: what kept a part from starting.
    """
    meter = Meter()
    side = RolloutSide.attach_or_launch(config)
    watch = side.watch(config)
    with contextlib.ExitStack() as open_while_supervised:
        offer = {}
        if config.ray.mode == "split":
            port = open_while_supervised.enter_context(port_of(side.servers, side.agents, get_node_ip_address()))
            offer = Away(port.address, side.host.endpoint).to_offer()
        link.ready(offer)
        _stand_by(config, link, side, watch, meter)
    meter.read(side.servers.usage(), {})
    return meter.report()


def _stand_by(config: RunConfig, link: Link, side: RolloutSide, watch: Watch, meter: Meter) -> None:
    link.wait(config.ray.up_timeout_s, "starting", "ready", "done")
    while not link.over():
        link.check()
        try:
            answers = watch.look()
        except RolloutError as error:
            if _trainer_is_done(link, error):
                break
            raise
        link.tell(meter.read(side.servers.usage(), answers))
        time.sleep(LOOK_S)


def _trainer_is_done(link: Link, lost: RolloutError) -> bool:
    """Whether parts are lost because training is over. Raises what ended the trainer if they are lost because of it."""
    until = time.monotonic() + LAST_WORD_S
    while time.monotonic() < until and not link.over():
        try:
            link.check()
        except StreamFailed as error:
            raise error from lost
        time.sleep(0.2)
    return link.over()

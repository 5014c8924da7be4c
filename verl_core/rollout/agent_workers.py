"""AgentWorkers: the driver's hold on all agent workers of a run. Invariant: a prompt handed over is started by exactly
one living worker, or the caller gets an error; nothing waits without a limit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayActorError

from verl_core.deadline import Deadline
from verl_core.errors import RolloutError
from verl_core.rollout import named_actor
from verl_core.rollout.agent_core import WorkerHealth
from verl_core.rollout.client import ServerHandle
from verl_core.trajectory import Prompt

MAX_RESTARTS = 10  # by Ray; groups that ran in a worker that died are lost with it and re-issued by the buffer
ANSWER_S = 60.0
_HEALTH_S = 5.0
_AGAIN_S = 0.2

Assign = Callable[[str, str, Sequence[Prompt]], None]


@dataclass
class AgentWorkers:
    """Attributes:
    actors: handles by actor name.
    namespace: of the actors.
    servers: handles of the inference servers; told with every dispatch, since a restarted worker knows none.
    """

    actors: dict[str, Any]
    namespace: str
    servers: dict[str, ServerHandle]
    _turn: int = field(default=0, init=False)

    def dispatch(self, prompts: Sequence[Prompt], assign: Assign = lambda name, life, part: None) -> None:
        """Hand the prompts over, spread evenly; returns as soon as all of them were accepted.

        Args:
            assign: told (worker, "", prompts) before they are sent, and (worker, life, prompts) when that life of the
                worker, its process, has accepted them.

        Raises:
            RolloutError: all workers are dead.
            DeadlineExceeded: a worker does not answer.
        """
        deadline = Deadline(f"the agent workers to accept {len(prompts)} prompts", ANSWER_S, self.state)
        sent = []
        for name, part in self._split(prompts).items():
            assign(name, "", part)
            arguments = (part, uuid.uuid4().hex, self.servers)
            sent.append((name, arguments, self._send(name, "start_groups", arguments)))
        for name, arguments, reference in sent:
            taker, life = self._started(name, arguments, reference, deadline)
            assign(taker, life, arguments[0])

    def set_servers(self, servers: Mapping[str, ServerHandle]) -> None:
        """Tell every worker which servers there are now."""
        self.servers = dict(servers)
        self._all("set_servers", self.servers)

    def reset(self) -> None:
        """Forget what is under way: nothing dispatched before is handed over after this returns. For a driver that
        starts over and serves the same uids again."""
        self._all("reset")

    def health(self, timeout_s: float = _HEALTH_S) -> dict[str, WorkerHealth | str]:
        """Each worker's own account, or why there is none. Never raises."""
        asked = {name: actor.health.remote() for name, actor in self.actors.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
        return {name: _account(reference) for name, reference in asked.items()}

    def state(self) -> str:
        """`health` in words, for error messages."""
        return "; ".join(f"{name}: {health}" for name, health in self.health().items())

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Kill the workers; returns when their names are free. Groups under way are lost."""
        deadline = Deadline("agent workers to end", timeout_s)
        for name in self.actors:
            named_actor.remove(name, self.namespace, deadline)

    def _split(self, prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
        """Round robin, going on where the last call stopped."""
        names = list(self.actors)
        parts: dict[str, list[Prompt]] = {}
        for offset, prompt in enumerate(prompts):
            parts.setdefault(names[(self._turn + offset) % len(names)], []).append(prompt)
        self._turn = (self._turn + len(prompts)) % len(names)
        return parts

    def _all(self, method: str, *arguments: Any) -> None:
        """The method on all workers. One that is dead for good has nothing to be told."""
        deadline = Deadline(f"{method} of {len(self.actors)} agent workers", ANSWER_S, self.state)
        sent = {name: self._send(name, method, arguments) for name in self.actors}
        for name, reference in sent.items():
            with suppress(ActorDiedError):
                self._answer(name, method, arguments, reference, deadline)

    def _started(self, name: str, arguments: tuple[Any, ...], reference: Any, deadline: Deadline) -> tuple[str, str]:
        """Who took the prompts, and in which life. Those of a worker that is dead for good go to another one."""
        while True:
            try:
                return name, self._answer(name, "start_groups", arguments, reference, deadline)
            except ActorDiedError as error:
                name = self._other_than(name, error)
                reference = self._send(name, "start_groups", arguments)

    def _answer(self, name: str, method: str, arguments: tuple[Any, ...], reference: Any, deadline: Deadline) -> Any:
        """Wait for the answer. To a worker that is unreachable (Ray is restarting it, or the network is down) the call
        is repeated: every method may be. Raises ActorDiedError when it is dead for good."""
        while True:
            try:
                return ray.get(reference, timeout=max(deadline.left, 0.001))
            except GetTimeoutError:
                raise deadline.expired() from None
            except ActorUnavailableError:
                deadline.check()
                time.sleep(_AGAIN_S)
                reference = self._send(name, method, arguments)

    def _send(self, name: str, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.actors[name], method).remote(*arguments)

    def _other_than(self, dead: str, error: ActorDiedError) -> str:
        """A living worker, after `dead` died for good; it gets no more prompts."""
        if len(self.actors) == 1:
            raise RolloutError(f"no agent worker is alive; the last one, {dead}, died: {error}") from error
        self.actors.pop(dead)
        return next(iter(self.actors))


def _account(reference: Any) -> WorkerHealth | str:
    try:
        health: WorkerHealth = ray.get(reference, timeout=0.001)
        return health
    except GetTimeoutError:
        return "does not answer in time; does an agent loop block the event loop?"
    except RayActorError as error:
        return f"is dead or unreachable: {error}"

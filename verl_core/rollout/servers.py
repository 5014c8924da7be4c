"""Servers: the driver's hold on all inference servers of a run. Invariant: a call on all is over only when every one
did it; a server that Ray is restarting is waited for, one that is gone for good is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead
from verl_core.models.folder import weight_files
from verl_core.rollout import named_actor
from verl_core.rollout.clients import resumable
from verl_core.rollout.engines.vllm_args import process_environment
from verl_core.rollout.interface import GateMode
from verl_core.rollout.server import LLMServer
from verl_core.rollout.server_state import ServerState
from verl_core.rollout.usage import ServerUsage
from verl_core.weights.interface import WeightManifest

ActorOptions = Callable[[int], dict[str, Any]]
# Ray starts a server again as often as it dies: how long anyone waits for one is bounded where it is waited for, by
# rollout.request_timeout_s and, at the start, trainer.init_timeout_s. A count would end a long run for rare bad luck.
MAX_RESTARTS = -1
MAX_CONCURRENCY = 100_000  # requests park in the server; control calls must still get in
_PING_S, _AGAIN_S = 3.0, 0.2


@dataclass(frozen=True)
class RayTransferServer:
    """weights.device.TransferServer over a server's handle; may be sent to the trainer's ranks."""

    handle: Any
    timeout_s: float

    def call(self, method: str, *arguments: Any) -> None:
        """Blocks until the server did it. Raises what it raised."""
        ray.get(self.handle.transfer.remote(method, *arguments), timeout=self.timeout_s)


@dataclass
class _Call:
    """A command on its way: who still owes an answer."""

    method: str
    arguments: tuple[Any, ...]
    deadline: Deadline
    sent: dict[Any, str] = field(default_factory=dict)


class Servers:
    """Get one from `attach_or_launch`. Actors are detached: they outlive this process until `shutdown`.

    Attributes:
        handles: actor handle by name, `server-0` ...
        under_way: weight version that `begin_update` began to load and nobody waited for yet.
    """

    def __init__(self, config: RunConfig, namespace: str, handles: dict[str, Any]) -> None:
        self.handles = handles
        self._config, self._namespace = config, namespace
        self._timeout_s = config.actor_rollout_ref.rollout.request_timeout_s
        self._pending: _Call | None = None
        self.under_way: int | None = None
        self._sleeping: dict[str, bool] = {}  # as this process left them; a server that restarts is awake

    @classmethod
    def attach_or_launch(
        cls,
        config: RunConfig,
        namespace: str,
        weights_folder: str | Path,
        device: str,
        actor_options: ActorOptions = lambda index: {"num_cpus": 0},
        num_servers: int | None = None,
        prefix: str = "server",
    ) -> Servers:
        """Servers that run already under this configuration are kept; the others are started, all at the same time.
        When one cannot start, all are ended.

        Args:
            weights_folder: where the trainer publishes. When no server of the run lives, what lies there is from an
                earlier run of the name and is forgotten: servers then start from the model folder, version 0.
            device: cpu or cuda.
            actor_options: Ray options of server i.
            num_servers: default rollout.num_servers, else 1.
            prefix: of their names. Servers beside those of the default one begin with whatever is published.

        Raises:
            DeadlineExceeded: not all were up within trainer.init_timeout_s; says how far each one came.
            VerlError: what kept a server from starting.
        """
        count = num_servers or config.actor_rollout_ref.rollout.num_servers or 1
        identity = _identity(config, device, weights_folder)
        deadline = Deadline(f"{count} inference servers to start", config.trainer.init_timeout_s)
        names = [f"{prefix}-{index}" for index in range(count)]
        found = {name: named_actor.attach(name, namespace, identity) for name in names}
        forget = prefix == "server" and not any(found.values())
        handles: dict[str, Any] = {}
        for index, name in enumerate(names):
            if found[name] is None:
                named_actor.remove(name, namespace, deadline)
                options = _options(config, device, count, actor_options(index))
                arguments = (index, config, device, str(weights_folder), identity, forget)
                handles[name] = named_actor.start(LLMServer, name, namespace, options, *arguments)
            else:
                handles[name] = found[name]
        servers = cls(config, namespace, handles)
        try:
            servers._all("ready", timeout_s=max(deadline.left, 1.0))
        except BaseException:
            servers.shutdown()
            raise
        return servers

    # ---- questions

    def version(self) -> int:
        """Weight version that all servers serve; -1 when they do not agree, or one has missed a publication."""
        versions = set(self._all("version").values())
        return int(versions.pop()) if len(versions) == 1 else -1

    def health(self) -> None:
        """Raise EngineDead unless every server serves."""
        self._all("health", timeout_s=min(60.0, self._timeout_s))

    def states(self) -> dict[str, ServerState | str]:
        """Each server's own account, or why there is none. Never raises, never takes long."""
        asked = {name: handle.ping.remote() for name, handle in self.handles.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_PING_S)
        return {name: _account(reference) for name, reference in asked.items()}

    def state(self) -> str:
        """`states` in words, for error messages."""
        states = self.states().items()
        return "; ".join(f"{name}: {s if isinstance(s, str) else s.describe()}" for name, s in states)

    def usage(self) -> dict[str, ServerUsage]:
        """Account of each server that answers within some seconds. Take the difference of two for an interval:
        `ServerUsage.since`. Never raises, never takes long."""
        asked = {name: handle.usage.remote() for name, handle in self.handles.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_PING_S)
        answers = {name: _account(reference) for name, reference in asked.items()}
        return {name: usage for name, usage in answers.items() if isinstance(usage, ServerUsage)}

    def part(self, names: Iterable[str]) -> Servers:
        """These servers only, for commands that the others must not get.

        Raises:
            KeyError: there is no such server.
        """
        part = Servers(self._config, self._namespace, {name: self.handles[name] for name in names})
        part._sleeping = self._sleeping
        return part

    def transfer_servers(self) -> Sequence[RayTransferServer]:
        """For weights.device.DeviceGroup, in order of index."""
        return [RayTransferServer(handle, self._timeout_s) for handle in self.handles.values()]

    # ---- commands, each on all servers at the same time

    def update_weights(self, manifest: WeightManifest) -> None:
        """All servers serve `manifest.version` when it returns. Repeating it costs nothing.

        Raises:
            WeightError: refused; the servers that refused serve what they served before.
            DeadlineExceeded: a server did not answer.
        """
        self._all("update_weights", manifest)

    def begin_update(self, manifest: WeightManifest) -> None:
        """`update_weights`, then `wake`, without waiting: `settle`, or the next command, waits for both. Requests may
        be sent meanwhile: they wait at the gates."""
        self.settle()
        self._sleeping.clear()
        self.under_way = manifest.version
        self._pending = self._begin("update_weights", (manifest, True), self._timeout_s)

    def settle(self) -> None:
        """Wait for what `begin_update` began; raises like `update_weights`. Nothing when nothing is under way."""
        pending, self._pending, self.under_way = self._pending, None, None
        if pending is not None:
            self._collect(pending)
            self._sleeping.update(dict.fromkeys(self.handles, False))

    def sleep(self, level: int = 1, abort: bool = True) -> None:
        """Give device memory back, with no request inside.

        Args:
            abort: cut off what still runs, since whoever sends the servers to sleep has all it wants; else wait for it.
        """
        if not all(self._sleeping.get(name) for name in self.handles):
            self._sleeping.clear()
            self._all("sleep", level, abort)
            self._sleeping.update(dict.fromkeys(self.handles, True))

    def wake(self) -> None:
        """Undo `sleep`; nothing when awake."""
        self.settle()
        if not all(self._sleeping.get(name) is False for name in self.handles):
            self._sleeping.clear()
            self._all("wake")
            self._sleeping.update(dict.fromkeys(self.handles, False))

    def abort(self) -> int:
        """Cut off every running request; returns how many."""
        return sum(self._all("abort").values())

    def gate(self, mode: GateMode) -> None:
        """Open, park or reject on all servers."""
        self._all("gate", mode)

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Kill the servers; returns when their names are free. Running requests are lost."""
        deadline = Deadline("inference servers to end", timeout_s)
        for name in self.handles:
            named_actor.remove(name, self._namespace, deadline)

    def _all(self, method: str, *arguments: Any, timeout_s: float | None = None) -> dict[str, Any]:
        """The method on all servers. Every command may be repeated, so one that was lost in a restart is sent again."""
        self.settle()
        return self._collect(self._begin(method, arguments, timeout_s or self._timeout_s))

    def _begin(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> _Call:
        call = _Call(method, arguments, Deadline(f"{method} of {len(self.handles)} servers", timeout_s, self.state))
        call.sent = {self._send(name, method, arguments): name for name in self.handles}
        return call

    def _collect(self, call: _Call) -> dict[str, Any]:
        """The answers. What has come is taken however late: `settle` may be called long after `begin_update`."""
        method, arguments, deadline, sent = call.method, call.arguments, call.deadline, call.sent
        answers: dict[str, Any] = {}
        while sent:
            done, _ = ray.wait(list(sent), num_returns=1, timeout=min(1.0, deadline.left))
            for reference in done:
                name = sent.pop(reference)
                try:
                    answers[name] = ray.get(reference)
                except ActorDiedError as error:
                    raise EngineDead(f"{name} is gone for good: {_first_line(error)}") from error
                except (ActorUnavailableError, EngineDead):
                    deadline.check()
                    time.sleep(min(_AGAIN_S, deadline.left))
                    sent[self._send(name, method, arguments)] = name
                except RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from error
            if not done:
                deadline.check()
        return answers

    def _send(self, name: str, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.handles[name], method).remote(*arguments)


def _options(config: RunConfig, device: str, count: int, given: dict[str, Any]) -> dict[str, Any]:
    """Ray options: the placement's own, with the environment vLLM needs under what the placement set."""
    runtime = dict(given.get("runtime_env", {}))
    environment = process_environment(config, device, count)
    if path := os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] = path
    runtime["env_vars"] = environment | runtime.get("env_vars", {})
    limits = {"max_restarts": MAX_RESTARTS, "max_task_retries": 0, "max_concurrency": MAX_CONCURRENCY}
    return {"num_cpus": 0} | limits | given | {"runtime_env": runtime}


def _identity(config: RunConfig, device: str, folder: str | Path) -> str:
    """Equal for servers that may stand in for each other: same engine, same settings, same model files."""
    model = config.actor_rollout_ref.model.path
    settings = [asdict(config.actor_rollout_ref.rollout), config.max_model_len, resumable(config)]
    parts = [settings, str(Path(model)), weight_files(model), device, str(folder)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _account(reference: Any) -> Any:
    """The answer, or in words why there is none."""
    try:
        state = ray.get(reference, timeout=0)
    except GetTimeoutError:
        return f"does not answer within {_PING_S:.0f} s"
    except RayError as error:
        return _first_line(error)
    return state


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"

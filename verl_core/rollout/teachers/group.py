"""Teachers: the driver's hold on all teacher servers of a run.

Invariant: every wait has a deadline and a dump; a server that vanishes is started anew once per step, its sequences are
asked again, and when it vanishes again the step ends with its name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from verl_core.config.schema import RunConfig
from verl_core.config.teachers import Teacher, teachers_of
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead, TeacherError, VerlError
from verl_core.models.folder import weight_files
from verl_core.rollout import named_actor
from verl_core.rollout.engines.vllm_args import process_environment
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow
from verl_core.rollout.teachers.server import TeacherServer
from verl_core.rollout.teachers.vllm_scoring import served

ActorOptions = Callable[[int], dict[str, Any]]
CHUNK_ROWS = 32  # sequences of one call: what is asked again when a server vanishes
_STATE_S, _LOOK_S, _SHUTDOWN_S = 3.0, 1.0, 30.0


@dataclass
class _Seat:
    """One server: how often it was started in this step, and what it was started as."""

    teacher: Teacher
    index: int
    handle: Any
    life: int = 0


@dataclass(frozen=True)
class _Sent:
    server: str
    life: int
    chunk: tuple[TeacherRequest, ...]


@dataclass
class Asked:
    """A question to all teachers that is under way; see `Teachers.collect`."""

    what: str
    topk: int
    vocabulary: int
    deadline: Deadline
    sent: dict[Any, _Sent] = field(default_factory=dict)
    rows: dict[str, TeacherRow] = field(default_factory=dict)


class Teachers:
    """Get one from `attach_or_launch`. Actors are detached: they outlive this process until `shutdown`."""

    def __init__(self, config: RunConfig, namespace: str, device: str, options: ActorOptions) -> None:
        self._config, self._namespace, self._device, self._options = config, namespace, device, options
        self._seats: dict[str, _Seat] = {}

    @classmethod
    def attach_or_launch(cls, config: RunConfig, namespace: str, device: str, options: ActorOptions) -> Teachers:
        """Servers that run already under these settings are kept, the others are started, all at the same time.

        Args:
            device: cpu or cuda.
            options: Ray options of server i, counted over all teachers.

        Raises:
            DeadlineExceeded: not all were up within trainer.init_timeout_s; says how far each one came.
            TeacherError: what kept a server from starting; all were ended.
        """
        teachers = cls(config, namespace, device, options)
        deadline = Deadline("the teachers to start", config.trainer.init_timeout_s, teachers.state)
        index = 0
        for teacher in teachers_of(config):
            for replica in range(teacher.replicas):
                name = f"teacher-{teacher.name}-{replica}"
                found = named_actor.attach(name, namespace, identity_of(config, teacher, device))
                seat = _Seat(teacher, index, found)
                teachers._seats[name] = seat
                if found is None:
                    teachers._start(name, seat, deadline)
                index += 1
        try:
            for name in teachers._seats:
                teachers._await(name, deadline)
        except BaseException:
            teachers.shutdown()
            raise
        return teachers

    def ask(self, requests: Mapping[str, Sequence[TeacherRequest]], topk: int, vocabulary: int, what: str) -> Asked:
        """Send sequences to their teachers; returns at once.

        Args:
            requests: by the name of the teacher.
            topk, vocabulary: see ScoringEngine.
            what: names the question in messages.
        """
        for seat in self._seats.values():
            seat.life = 0
        count = sum(len(rows) for rows in requests.values())
        name = f"teachers to score {count} sequences of {what}"
        deadline = Deadline(name, self._config.distillation.call_timeout_s, self.state)
        asked = Asked(what, topk, vocabulary, deadline)
        for teacher, rows in requests.items():
            servers = [name for name, seat in self._seats.items() if seat.teacher.name == teacher]
            for number, first in enumerate(range(0, len(rows), CHUNK_ROWS)):
                self._send(asked, servers[number % len(servers)], tuple(rows[first : first + CHUNK_ROWS]))
        return asked

    def collect(self, asked: Asked, check: Callable[[], None] = lambda: None) -> dict[str, TeacherRow]:
        """The answers by key.

        Args:
            check: raises when the run cannot go on; called while waiting.

        Raises:
            TeacherError: a sequence cannot be scored, or a teacher vanished twice.
            DeadlineExceeded: no answer within distillation.call_timeout_s. What has come is taken however late: the
                trainer may have computed longer than that since it asked.
        """
        while asked.sent:
            done, _ = ray.wait(list(asked.sent), num_returns=1, timeout=min(_LOOK_S, asked.deadline.left))
            for reference in done:
                self._take(asked, reference)
            check()
            if asked.sent and not done:
                asked.deadline.check()
        return asked.rows

    def state(self) -> str:
        """Each server's own account, for error messages. Never raises, never takes long."""
        asked = {name: seat.handle.state.remote() for name, seat in self._seats.items() if seat.handle is not None}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_STATE_S) if asked else None
        return "; ".join(f"{name}: {_account(reference)}" for name, reference in asked.items()) or "no server yet"

    def shutdown(self) -> None:
        """Kill the servers; returns when their names are free."""
        deadline = Deadline("teacher servers to end", _SHUTDOWN_S)
        for name in self._seats:
            named_actor.remove(name, self._namespace, deadline)

    # ---- one server

    def _take(self, asked: Asked, reference: Any) -> None:
        sent = asked.sent.pop(reference)
        try:
            rows = ray.get(reference)
        except (RayActorError, EngineDead) as error:
            self._renew(asked, sent, error)
            self._send(asked, sent.server, sent.chunk)
            return
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, VerlError) else error) from error
        asked.rows.update((request.key, row) for request, row in zip(sent.chunk, rows, strict=True))

    def _send(self, asked: Asked, server: str, chunk: tuple[TeacherRequest, ...]) -> None:
        seat = self._seats[server]
        reference = seat.handle.score.remote(list(chunk), asked.topk, asked.vocabulary)
        asked.sent[reference] = _Sent(server, seat.life, chunk)

    def _renew(self, asked: Asked, sent: _Sent, error: BaseException) -> None:
        """Start the server anew, unless that was done since `sent` went out."""
        seat = self._seats[sent.server]
        if seat.life > sent.life:
            return
        if seat.life:
            raise TeacherError(
                f"{sent.server} (distillation.teacher_models.{seat.teacher.name}, {seat.teacher.path}) vanished while "
                f"it scored {asked.what}, was started again, and vanished again: {_first_line(error)}. Nothing was "
                "trained on; look at its log and at the memory of its device, then run again"
            ) from error
        seat.life += 1
        self._start(sent.server, seat, asked.deadline)
        self._await(sent.server, asked.deadline)

    def _start(self, name: str, seat: _Seat, deadline: Deadline) -> None:
        named_actor.remove(name, self._namespace, deadline)
        given = self._options(seat.index)
        runtime = dict(given.get("runtime_env", {}))
        environment = process_environment(served(self._config, seat.teacher), self._device, len(self._seats))
        if path := os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] = path
        runtime["env_vars"] = environment | runtime.get("env_vars", {})
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0} | given | {"runtime_env": runtime}
        identity = identity_of(self._config, seat.teacher, self._device)
        arguments = (self._config, seat.teacher, self._device, identity)
        seat.handle = named_actor.start(TeacherServer, name, self._namespace, options, *arguments)

    def _await(self, name: str, deadline: Deadline) -> None:
        seat = self._seats[name]
        try:
            ray.get(seat.handle.ready.remote(), timeout=max(deadline.left, 0.001))
        except GetTimeoutError as error:
            raise deadline.expired() from error
        except RayActorError as error:
            raise TeacherError(
                f"{name} (distillation.teacher_models.{seat.teacher.name}, {seat.teacher.path}) ended while it loaded "
                f"its model: {_first_line(error)}. Look at its log and at the memory of its device"
            ) from error
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, VerlError) else error) from error


def identity_of(config: RunConfig, teacher: Teacher, device: str) -> str:
    """Equal for servers that may stand in for each other: same settings, same model files."""
    files = weight_files(teacher.path)
    parts = [asdict(teacher), asdict(config.actor_rollout_ref.rollout), config.max_model_len, files, device]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _account(reference: Any) -> str:
    try:
        return str(ray.get(reference, timeout=0))
    except GetTimeoutError:
        return f"does not answer within {_STATE_S:.0f} s"
    except RayError as error:
        return _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"

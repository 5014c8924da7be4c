"""RewardModelGroup: the reward model's workers, Ray actors `reward-model-{i}` that outlive the process which started
them.

Invariant: every row gets one outcome, a score or the kind of its failure, whatever dies or hangs; a batch takes no
longer than `reward.reward_model.timeout_s`, or the worker that has it is started again. Which rows share a batch
changes no score beyond float rounding.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from verl_core.config.schema import RewardModelConfig
from verl_core.deadline import Deadline
from verl_core.engine.plan import Rows, micro_batches
from verl_core.engine.reward_worker import RewardModelFacts, RewardModelWorker
from verl_core.errors import RewardError, VerlError
from verl_core.models.folder import weight_files
from verl_core.rollout import named_actor
from verl_core.trajectory import Int32, RewardStatus

_LOOK_S, _AGAIN_S, _KILL_S = 1.0, 0.2, 30.0
_ATTEMPTS = 2  # of a batch: a worker may die of something else, twice in a row is the batch's fault


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no score."""

    status: RewardStatus
    reason: str


Outcome = float | Failure


@dataclass
class _Batch:
    """Rows on their way through a worker."""

    rows: Rows
    attempts: int = 0


@dataclass
class _Job:
    """What a worker is at; without a batch it is starting again."""

    worker: str
    deadline: Deadline
    batch: _Batch | None = None


class RewardModelGroup:
    """Get one from `attach_or_launch`.

    Attributes:
        facts: of the model.
    """

    def __init__(
        self, settings: RewardModelConfig, namespace: str, actors: dict[str, Any], start_budget_s: float
    ) -> None:
        self._settings, self._namespace, self._actors = settings, namespace, actors
        self._start_budget_s = start_budget_s
        self._broken: dict[str, Deadline] = {}  # were killed or died; must answer before they get a batch
        self.facts = RewardModelFacts(0, 0, 0, False)

    @classmethod
    def attach_or_launch(
        cls,
        settings: RewardModelConfig,
        namespace: str,
        count: int,
        actor_options: Callable[[int], dict[str, Any]],
        device: str,
        start_budget_s: float,
    ) -> RewardModelGroup:
        """Workers that run under these settings are kept, the others are started, side by side.

        Args:
            actor_options: Ray options of worker i.
            device: cpu or cuda.
            start_budget_s: `trainer.init_timeout_s`; also how long a worker may take to come back.

        Raises:
            ModelError: the model cannot be used; nothing of the group is left.
            DeadlineExceeded: a worker did not come up.
        """
        shared = not settings.enable_resource_pool
        identity = _identity(settings, device, count)
        group = cls(settings, namespace, {}, start_budget_s)
        deadline = Deadline(f"{count} reward model workers to start", start_budget_s, group._state)
        arguments = (settings, device, shared, count, identity)
        for index in range(count):
            name = f"reward-model-{index}"
            options = {"num_cpus": 0, **actor_options(index), "max_restarts": -1, "max_task_retries": 0}
            group._actors[name] = named_actor.attach_or_start(
                RewardModelWorker, name, namespace, identity, options, deadline, *arguments
            )
        try:
            answers = group._all("facts", max(deadline.left, 1.0))
            if shared:  # a process that ended while they scored left them on the devices
                group.sleep()
        except BaseException:
            group.shutdown()
            raise
        group.facts = next(iter(answers.values()))
        return group

    def wake(self) -> None:
        """All workers have the model on their devices. Raises as `attach_or_launch`."""
        self._all("wake", self._start_budget_s)

    def sleep(self) -> None:
        """All workers gave the memory of their devices back. Raises as `attach_or_launch`."""
        self._all("sleep", self._start_budget_s)

    def describe(self) -> list[RewardModelFacts]:
        """What each worker says of itself."""
        return list(self._all("facts", self._start_budget_s).values())

    def score(self, rows: Sequence[Int32], most_failures: int | None = None) -> list[Outcome]:
        """One outcome per row, in order.

        Args:
            most_failures: with more of them the caller goes no further: batches that are not under way then are not
                tried, and fail. None = all are tried.

        Raises:
            DeadlineExceeded: a worker that died or hung did not come back within the start budget.
            ModelError: it came back and cannot read the model any more.
        """
        if not self._actors:
            raise RewardError("these reward model workers were shut down; build new ones with attach_or_launch")
        done: dict[int, Outcome] = {place: refused for place, row in enumerate(rows) if (refused := self._unfit(row))}
        lengths = np.asarray([len(row) for row in rows], dtype=np.int64)
        fit = [place for place in range(len(rows)) if place not in done]
        waiting = [_Batch(batch) for batch in micro_batches(fit, lengths, self._settings.max_token_len_per_gpu)]
        running: dict[Any, _Job] = {}
        idle = list(self._actors)
        while waiting or any(job.batch for job in running.values()):
            if waiting and _give_up(waiting, done, most_failures):
                continue
            while waiting and idle:
                self._send(idle.pop(), waiting, rows, running)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
            for reference in ready:
                job = running.pop(reference)
                self._settle(reference, job, done, waiting)
                idle.append(job.worker)
            for reference, job in list(running.items()):
                if not job.deadline.left:
                    del running[reference]
                    self._expire(job, done)
                    idle.append(job.worker)
        return [done[place] for place in range(len(rows))]

    def shutdown(self) -> None:
        """Kill the workers; returns when their names are free. Idempotent."""
        deadline = Deadline("the reward model's workers to end", _KILL_S, self._state)
        for name in self._actors:
            named_actor.remove(name, self._namespace, deadline)
        self._actors = {}

    def _unfit(self, row: Int32) -> Failure | None:
        limit = self.facts.max_positions
        if not len(row):
            return Failure("raised", "there is no token to score")
        if limit and len(row) > limit:
            return Failure("raised", f"{len(row)} tokens, the reward model reads {limit} (max_position_embeddings)")
        if self.facts.vocabulary and int(row.max()) >= self.facts.vocabulary:
            return Failure("raised", f"token {int(row.max())}, the reward model knows {self.facts.vocabulary}")
        return None

    def _send(self, worker: str, waiting: list[_Batch], rows: Sequence[Int32], running: dict[Any, _Job]) -> None:
        """The next batch to the worker; or, where it was started again, a question whether it is there."""
        actor = self._actors[worker]
        if worker in self._broken:
            running[actor.facts.remote()] = _Job(worker, self._broken[worker])
            return
        batch = waiting.pop()
        batch.attempts += 1
        deadline = Deadline(f"a batch of scores from {worker}", self._settings.timeout_s)
        reference = actor.score.remote([rows[place] for place in batch.rows])
        running[reference] = _Job(worker, deadline, batch)

    def _settle(self, reference: Any, job: _Job, done: dict[int, Outcome], waiting: list[_Batch]) -> None:
        try:
            answer = ray.get(reference)
        except RayTaskError as error:
            cause = error.cause
            if job.batch is None:
                raise (cause if isinstance(cause, VerlError) else error) from error
            failure = Failure("raised", f"the reward model failed in {job.worker}: {type(cause).__name__}: {cause}")
            done.update(dict.fromkeys(job.batch.rows, failure))
            return
        except RayError as error:  # the worker died, whatever of
            if job.batch is None and job.deadline.left:
                time.sleep(min(_AGAIN_S, job.deadline.left))  # still on its way up
                return
            self._break(job.worker)
            self._died(job, (str(error).strip().splitlines() or [type(error).__name__])[0], done, waiting)
            return
        if job.batch is None:
            self._broken.pop(job.worker, None)
        else:
            done.update(zip(job.batch.rows, answer, strict=True))

    def _break(self, worker: str) -> None:
        deadline = Deadline(f"{worker} to start again", self._start_budget_s, self._state)
        self._broken.setdefault(worker, deadline)

    def _died(self, job: _Job, how: str, done: dict[int, Outcome], waiting: list[_Batch]) -> None:
        if job.batch is None:
            raise job.deadline.expired()
        if job.batch.attempts < _ATTEMPTS:
            waiting.append(job.batch)
            return
        reason = f"the reward model's worker died {_ATTEMPTS} times over its batch, last {job.worker}: {how}"
        done.update(dict.fromkeys(job.batch.rows, Failure("raised", reason)))

    def _expire(self, job: _Job, done: dict[int, Outcome]) -> None:
        """A worker that hangs is started again; its rows are quarantined, for a second time would cost as much."""
        if job.batch is None:
            raise job.deadline.expired()
        self._break(job.worker)
        ray.kill(self._actors[job.worker], no_restart=False)
        reason = (
            f"no score within {self._settings.timeout_s:g} s (reward.reward_model.timeout_s) for a batch of "
            f"{len(job.batch.rows)} rows in {job.worker}; the worker was started again. {self._state()}"
        )
        done.update(dict.fromkeys(job.batch.rows, Failure("timeout", reason)))

    def _all(self, method: str, seconds: float) -> dict[str, Any]:
        """The method on all workers; sent again to one that is starting again."""
        deadline = Deadline(f"{method} of {len(self._actors)} reward model workers", seconds, self._state)
        sent = {getattr(actor, method).remote(): name for name, actor in self._actors.items()}
        answers: dict[str, Any] = {}
        while sent:
            done, _ = ray.wait(list(sent), num_returns=1, timeout=min(_LOOK_S, max(deadline.left, 0.001)))
            for reference in done:
                name = sent.pop(reference)
                try:
                    answers[name] = ray.get(reference)
                except RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, VerlError) else error) from error
                except RayError:
                    time.sleep(min(_AGAIN_S, deadline.left))
                    sent[getattr(self._actors[name], method).remote()] = name
            if sent:
                deadline.check()
        self._broken.clear()
        return answers

    def _state(self) -> str:
        names = ", ".join(f"{name}{' (starting again)' if name in self._broken else ''}" for name in self._actors)
        return f"workers {names or 'none'} of {self._settings.model_path}"


def _give_up(waiting: list[_Batch], done: dict[int, Outcome], most_failures: int | None) -> bool:
    """Whether more than `most_failures` rows failed; what waits then has failed, too."""
    failed = [outcome for outcome in done.values() if isinstance(outcome, Failure)]
    if most_failures is None or len(failed) <= most_failures:
        return False
    reason = f"not tried after {len(failed)} failures, the last: {failed[-1].reason}"
    for batch in waiting:
        done.update(dict.fromkeys(batch.rows, Failure(failed[-1].status, reason)))
    waiting.clear()
    return True


def _identity(settings: RewardModelConfig, device: str, count: int) -> str:
    """Equal for workers that may stand in for each other: same settings, same model files."""
    parts = [asdict(settings), weight_files(settings.model_path), device, count]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

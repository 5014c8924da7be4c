"""RewardWorkers: the Scorer of a run, N Ray actors `reward-{i}` that outlive the process which started them.

Invariant: every sample is scored by exactly one answer, whatever dies on the way; order and results do not depend on
how the samples were spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import ray

from verl_core.config.schema.reward import RewardConfig
from verl_core.deadline import Deadline
from verl_core.errors import RewardError
from verl_core.reward.budget import check_budget, failures_allowed
from verl_core.reward.interface import Sample
from verl_core.reward.process import START_BUDGET_S
from verl_core.reward.wire import Packed, failures, packed_samples, unpacked_rewards
from verl_core.reward.worker import RewardWorker, identity_of
from verl_core.rollout import named_actor
from verl_core.trajectory import Reward

_CALL_BUDGET_S = 60.0  # a call that does no scoring
_GOOD_CHUNK = 64  # samples; small enough to even out slow samples, large enough that the call costs little
_RESTARTS, _REPEATS = 3, 3  # of an actor whose machine or process went away, and of the call it was answering


class RewardWorkers:
    """Implements Scorer. Build it with `attach_or_launch`."""

    def __init__(self, config: RewardConfig, actors: Sequence[Any]) -> None:
        self._config, self._actors = config, list(actors)

    @classmethod
    def attach_or_launch(
        cls,
        config: RewardConfig,
        namespace: str,
        sources: Sequence[str] = (),
        actor_options: dict[str, Any] | None = None,
    ) -> RewardWorkers:
        """Use the actors of the namespace if they answer and have this configuration, else create them, detached.

        Args:
            sources: data sources whose functions are imported now instead of at the first step.
            actor_options: Ray options on top of the own ones.

        Raises:
            RewardError: a function cannot be loaded; nothing is left running then.
            DeadlineExceeded: an actor did not come up.
        """
        options = {"num_cpus": 0, **(actor_options or {})}
        actors = [_attach_or_create(f"reward-{i}", namespace, config, options) for i in range(config.num_workers)]
        workers = cls(config, actors)
        try:
            _get([actor.load.remote(list(sources)) for actor in actors], "reward workers to start", 2 * START_BUDGET_S)
        except RewardError:
            workers.shutdown()
            raise
        return workers

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """One Reward per sample, in order.

        Raises:
            RewardError: more than `reward.error_budget` of the samples were quarantined, or the workers keep dying.
                What was not tried when that was clear is not waited for.
            DeadlineExceeded: longer than if every sample of a worker's share hung.
        """
        rewards = self._scored(samples, failures_allowed(len(samples), self._config.error_budget))
        check_budget(rewards, self._config.error_budget)
        return rewards

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        """Like `score`, whatever the share of failures. Raises as `score`, apart from that."""
        return self._scored(samples, None)

    def _scored(self, samples: Sequence[Sample], most_failures: int | None) -> list[Reward]:
        """Rewards in order; of the first samples only once more than `most_failures` failed."""
        chunks = self._chunks(samples)
        done: list[list[Packed]] = [[] for _ in chunks]
        waiting = list(enumerate(chunks))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        idle = list(self._actors)
        deadline = Deadline("rewards", self._budget(len(samples)), lambda: self._state(chunks, running))
        while waiting or running:
            while waiting and idle:
                index, chunk = waiting.pop()
                actor = idle.pop()
                running[actor.score.remote(packed_samples(chunk), most_failures)] = (index, actor)
            ready, _ = ray.wait(list(running), timeout=max(deadline.left, 0.001))
            if not ready:
                raise deadline.expired()
            index, actor = running.pop(ready[0])
            done[index] = _get_one(ready[0], "a chunk of rewards", deadline.left + _CALL_BUDGET_S)
            idle.append(actor)
            if waiting and most_failures is not None and failures(chain.from_iterable(done)) > most_failures:
                waiting.clear()
        return unpacked_rewards(reward for chunk in done for reward in chunk)

    def pids(self) -> list[tuple[int, int]]:
        """(actor, reward process) of every worker."""
        pids: list[tuple[int, int]] = _get(
            [actor.pids.remote() for actor in self._actors], "reward pids", _CALL_BUDGET_S
        )
        return pids

    def shutdown(self) -> None:
        """Kill the actors; their reward processes die with them. Idempotent."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()

    def _chunks(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Contiguous parts of even size: one per worker, or more when several workers could even them out."""
        if not samples:
            return []
        if not self._actors:
            raise RewardError("these reward workers were shut down; build new ones with attach_or_launch")
        alone = len(self._actors) == 1
        rounds = 1 if alone else math.ceil(len(samples) / (_GOOD_CHUNK * len(self._actors)))
        size = math.ceil(len(samples) / (rounds * len(self._actors)))
        return [list(samples[start : start + size]) for start in range(0, len(samples), size)]

    def _budget(self, count: int) -> float:
        """Seconds if every sample hung and every process had to be started again each time."""
        share = math.ceil(max(count, 1) / max(len(self._actors), 1))
        return START_BUDGET_S + share * (self._config.timeout_s + START_BUDGET_S)

    def _state(self, chunks: list[list[Sample]], running: dict[Any, tuple[int, Any]]) -> str:
        keys = [chunks[index][0].key for index, _ in running.values()]
        return f"{len(running)} chunks unanswered, beginning with {', '.join(keys)}"


def _attach_or_create(name: str, namespace: str, config: RewardConfig, options: dict[str, Any]) -> Any:
    whole = {"max_restarts": _RESTARTS, "max_task_retries": _REPEATS, **options}
    deadline = Deadline(f"the name {name} to be free", _CALL_BUDGET_S)
    return named_actor.attach_or_start(RewardWorker, name, namespace, identity_of(config), whole, deadline, config)


def _get(calls: list[Any], name: str, seconds: float) -> list[Any]:
    deadline = Deadline(name, seconds, lambda: f"{len(calls)} calls, not all answered")
    return [_get_one(call, name, max(deadline.left, 0.001)) for call in calls]


def _get_one(call: Any, name: str, seconds: float) -> Any:
    """Result of one call; the remote error itself when it is one of ours."""
    try:
        return ray.get(call, timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        raise Deadline(name, seconds).expired() from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RewardError):
            raise RewardError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        raise RewardError(f"a reward worker died {_RESTARTS + 1} times; the last time: {error}") from error

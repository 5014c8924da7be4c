"""RankGroup: a trained network as N Ray actors `<name>-{rank}`, detached, so that another process can take them over.

Invariant: all ranks are of one configuration and at one step, or the group is not used: a rank that died, hung or
failed in an unforeseen way breaks the group for good, and `attach_or_launch` starts a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Self

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.engine.rank_worker import RankWorker, WorkerStatus, identity_of
from verl_core.engine.rpc import RankFailure, call_all
from verl_core.errors import DeadlineExceeded, PolicyError, VerlError

KILL_S = 30.0
ActorOptions = Callable[[int], dict[str, Any]]


class RankGroup:
    """Implements TrainedEngine over actors that were found or made."""

    worker: ClassVar[type[RankWorker]]

    def __init__(self, config: RunConfig, namespace: str, actors: list[Any]) -> None:
        self._config, self._namespace, self._actors = config, namespace, actors
        self._broken = ""
        self._steps: int | None = None  # of the ranks, while no call that may move them is under way

    @classmethod
    def prefix(cls) -> str:
        """Of the actors' names."""
        return f"{cls.worker.noun}-"

    @classmethod
    def found_or_launched(
        cls,
        config: RunConfig,
        namespace: str,
        total_steps: int,
        actor_options: ActorOptions,
        arguments: tuple[Any, ...],
    ) -> Self:
        """Take over the group of this namespace if it is whole, settled and of this configuration; else start one.

        A new group holds the weights that the configuration starts from (steps_done 0): the caller loads a checkpoint.

        Args:
            total_steps: global steps of the run.
            actor_options: Ray options of each rank.
            arguments: of the worker, behind configuration, rank and total_steps.

        Raises:
            ModelError: the model cannot be used.
            DeadlineExceeded: the ranks did not come up within trainer.init_timeout_s. Ranks that are there have as long
                to answer before they are replaced: they may still be at work for a process that is gone.
        """
        group = cls(config, namespace, _named(namespace, cls.prefix()))
        if group._usable(identity_of(config, total_steps)):
            return group
        group.shutdown()
        group = cls(config, namespace, [])
        try:
            group._launch(total_steps, actor_options, arguments)
        except BaseException:
            group.shutdown()
            raise
        return group

    def steps_done(self) -> int:
        """See TrainedEngine. The ranks are asked once: only calls of their one owner, this group, move them."""
        if self._broken or self._steps is None:
            steps = {status.steps_done for status in self.status()}
            if len(steps) > 1:
                raise self._break(f"the ranks are at different steps: {sorted(steps)}")
            self._steps = steps.pop()
        return self._steps

    def status(self) -> list[WorkerStatus]:
        """Of every rank."""
        return self._call("status")

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See TrainedEngine."""
        metrics: dict[str, float] = self._moving("update", self._sent(batch), step)[0]
        self._steps = step
        return metrics

    def save(self, folder: str) -> None:
        """See TrainedEngine."""
        self._call("save", folder)

    def load(self, folder: str) -> None:
        """See TrainedEngine."""
        self._moving("load", folder)

    def reset(self) -> None:
        """See TrainedEngine."""
        self._moving("reset")

    def weights_sha256(self) -> str:
        """See TrainedEngine."""
        digests = set(self._call("weights_sha256"))
        if len(digests) > 1:
            raise self._break(f"the ranks hold different weights: {sorted(digests)}")
        digest: str = digests.pop()
        return digest

    def shutdown(self) -> None:
        """End every actor of the group, also those left of a broken one; returns when their names are free."""
        import ray

        deadline = Deadline(f"the {self._noun} ranks to end", KILL_S, lambda: f"still there: {len(left)}")
        left = _named(self._namespace, self.prefix())
        while left:
            for actor in left:
                ray.kill(actor)
            deadline.check()
            time.sleep(0.02)
            left = _named(self._namespace, self.prefix())
        self._actors = []
        self._broken = f"the {self._noun} was shut down"

    @property
    def _noun(self) -> str:
        return self.worker.noun

    def _launch(self, total_steps: int, actor_options: ActorOptions, arguments: tuple[Any, ...]) -> None:
        import ray

        config, limit = self._config, self._config.trainer.init_timeout_s
        actor_class = ray.remote(self.worker)
        for rank in range(config.world_size):
            named = {"name": f"{self.prefix()}{rank}", "namespace": self._namespace}
            options = {"num_cpus": 0, **actor_options(rank), **named}
            actor = actor_class.options(lifetime="detached", max_restarts=0, **options)
            self._actors.append(actor.remote(config, rank, total_steps, *arguments, True))
        meeting = ("", 0)
        if config.world_size > 1:
            meeting = call_all(self._actors[:1], "rendezvous", (), limit, self._noun)[0]
        call_all(self._actors, "start", meeting, limit, self._noun)

    def _usable(self, identity: str) -> bool:
        """Whether every rank is there, answers, and holds settled weights of this run at one step."""
        if len(self._actors) != self._config.world_size:
            return False
        try:
            states = call_all(self._actors, "status", (), self._config.trainer.init_timeout_s, self._noun)
        except VerlError:
            return False
        return {state.identity for state in states} == {identity} and all(
            state.settled and state.steps_done == states[0].steps_done for state in states
        )

    def _moving(self, method: str, *arguments: Any) -> list[Any]:
        """A call after which, whether it fails or not, the ranks are to be asked anew where they stand."""
        self._steps = None
        return self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        if self._broken:
            raise PolicyError(f"{method}: {self._broken}")
        limit = self._config.actor_rollout_ref.actor.call_timeout_s
        try:
            return call_all(self._actors, method, arguments, limit, self._noun)
        except (RankFailure, DeadlineExceeded) as error:
            self._broken = f"the {self._noun} group is broken: {error}"
            raise

    def _break(self, why: str) -> PolicyError:
        self._broken = why
        return PolicyError(f"{why}; start the {self._noun} again and load a checkpoint")

    @staticmethod
    def _sent(batch: TrainBatch) -> Any:
        """The batch in the object store, once; every rank of a host reads the same copy."""
        import ray

        return ray.put(batch)


def _named(namespace: str, prefix: str) -> list[Any]:
    """The ranks that Ray still knows in a namespace, in order; also those of a group of another size."""
    import ray

    ranks = [
        int(entry["name"].removeprefix(prefix))
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if entry["namespace"] == namespace and entry["name"].startswith(prefix)
    ]
    found = []
    for rank in sorted(ranks):
        try:
            found.append(ray.get_actor(f"{prefix}{rank}", namespace))
        except ValueError:
            continue  # it died between the two questions
    return found

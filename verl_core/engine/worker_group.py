"""PolicyGroup: the policy engine as N Ray actors `policy-{rank}`, detached, so that another process can take them over.

Invariant: all ranks are of one configuration and at one step, or the group is not used: a rank that died, hung or
failed in an unforeseen way breaks the group for good, and `attach_or_launch` starts a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.engine.interface import LogProbs
from verl_core.engine.publishing import SenderFactory
from verl_core.engine.rpc import RankFailure, call_all
from verl_core.engine.scorer import merged
from verl_core.engine.worker import PolicyWorker, WorkerStatus, identity_of
from verl_core.errors import DeadlineExceeded, PolicyError, VerlError
from verl_core.weights.interface import WeightManifest

NAME = "policy-"
KILL_S = 30.0
ActorOptions = Callable[[int], dict[str, Any]]


class PolicyGroup:
    """Implements PolicyEngine over actors that `attach_or_launch` found or made."""

    def __init__(self, config: RunConfig, namespace: str, actors: list[Any]) -> None:
        self._config, self._namespace, self._actors = config, namespace, actors
        self._broken = ""
        self._steps: int | None = None  # of the ranks, while no call that may move them is under way

    @classmethod
    def attach_or_launch(
        cls,
        config: RunConfig,
        namespace: str,
        total_steps: int,
        actor_options: ActorOptions,
        weights_folder: str,
        device: str,
    ) -> PolicyGroup:
        """Take over the group of this namespace if it is whole, settled and of this configuration; else start one.

        A new group holds the weights of `model.path` (steps_done 0): the caller loads a checkpoint.

        Args:
            total_steps: global steps of the run.
            actor_options: Ray options of each rank.
            weights_folder: where rank 0 publishes.
            device: cpu or cuda, of every rank.

        Raises:
            ModelError: the model cannot be used.
            DeadlineExceeded: the ranks did not come up within trainer.init_timeout_s. Ranks that are there have as long
                to answer before they are replaced: they may still be at work for a process that is gone.
        """
        group = cls(config, namespace, _named(namespace))
        if group._usable(identity_of(config, total_steps)):
            return group
        group.shutdown()
        group = cls(config, namespace, [])
        try:
            group._launch(total_steps, actor_options, weights_folder, device)
        except BaseException:
            group.shutdown()
            raise
        return group

    def steps_done(self) -> int:
        """See PolicyEngine. The ranks are asked once: only calls of their one owner, this group, move them."""
        if self._broken or self._steps is None:
            steps = {status.steps_done for status in self.status()}
            if len(steps) > 1:
                raise self._break(f"the ranks are at different steps: {sorted(steps)}")
            self._steps = steps.pop()
        return self._steps

    def status(self) -> list[WorkerStatus]:
        """Of every rank."""
        return self._call("status")

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, self._call("old_log_probs", self._sent(batch)), with_entropy=True)

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, self._call("ref_log_probs", self._sent(batch)), with_entropy=False)

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See PolicyEngine."""
        metrics: dict[str, float] = self._moving("update", self._sent(batch), step)[0]
        self._steps = step
        return metrics

    def publish(self, version: int) -> WeightManifest:
        """See PolicyEngine."""
        manifests = [manifest for manifest in self._call("publish", version) if manifest is not None]
        if not manifests:
            raise PolicyError("no rank has a weight sender")
        first: WeightManifest = manifests[0]
        return first

    def meeting_point(self) -> tuple[str, int]:
        """Address of rank 0's host and a free port there, for a sender that servers have to reach."""
        where: tuple[str, int] = call_all(self._actors[:1], "free_port", (), self._config.trainer.init_timeout_s)[0]
        return where

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on; the factory is pickled to every rank."""
        self._call("use_sender", factory)

    def save(self, folder: str) -> None:
        """See PolicyEngine."""
        self._call("save", folder)

    def load(self, folder: str) -> None:
        """See PolicyEngine."""
        self._moving("load", folder)

    def reset(self) -> None:
        """See PolicyEngine."""
        self._moving("reset")

    def weights_sha256(self) -> str:
        """See PolicyEngine."""
        digests = set(self._call("weights_sha256"))
        if len(digests) > 1:
            raise self._break(f"the ranks hold different weights: {sorted(digests)}")
        digest: str = digests.pop()
        return digest

    def shutdown(self) -> None:
        """End every actor of the group, also those left of a broken one; returns when their names are free."""
        import ray

        deadline = Deadline("the policy ranks to end", KILL_S, lambda: f"still there: {len(left)}")
        left = _named(self._namespace)
        while left:
            for actor in left:
                ray.kill(actor)
            deadline.check()
            time.sleep(0.02)
            left = _named(self._namespace)
        self._actors = []
        self._broken = "the policy was shut down"

    def _launch(self, total_steps: int, actor_options: ActorOptions, weights_folder: str, device: str) -> None:
        import ray

        config, limit = self._config, self._config.trainer.init_timeout_s
        actor_class = ray.remote(PolicyWorker)
        for rank in range(config.world_size):
            options = {"num_cpus": 0, **actor_options(rank), "name": f"{NAME}{rank}", "namespace": self._namespace}
            actor = actor_class.options(lifetime="detached", max_restarts=0, **options)
            self._actors.append(actor.remote(config, rank, total_steps, weights_folder, device, True))
        meeting = ("", 0) if config.world_size == 1 else call_all(self._actors[:1], "rendezvous", (), limit)[0]
        call_all(self._actors, "start", meeting, limit)

    def _usable(self, identity: str) -> bool:
        """Whether every rank is there, answers, and holds settled weights of this run at one step."""
        if len(self._actors) != self._config.world_size:
            return False
        try:
            states = call_all(self._actors, "status", (), self._config.trainer.init_timeout_s)
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
        try:
            return call_all(self._actors, method, arguments, self._config.actor_rollout_ref.actor.call_timeout_s)
        except (RankFailure, DeadlineExceeded) as error:
            self._broken = f"the policy group is broken: {error}"
            raise

    def _break(self, why: str) -> PolicyError:
        self._broken = why
        return PolicyError(f"{why}; start the policy again and load a checkpoint")

    @staticmethod
    def _sent(batch: TrainBatch) -> Any:
        """The batch in the object store, once; every rank of a host reads the same copy."""
        import ray

        return ray.put(batch)


def _named(namespace: str) -> list[Any]:
    """The policy actors that Ray still knows in a namespace, by rank; also those of a group of another size."""
    import ray

    ranks = [
        int(entry["name"].removeprefix(NAME))
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if entry["namespace"] == namespace and entry["name"].startswith(NAME)
    ]
    found = []
    for rank in sorted(ranks):
        try:
            found.append(ray.get_actor(f"{NAME}{rank}", namespace))
        except ValueError:
            continue  # it died between the two questions
    return found

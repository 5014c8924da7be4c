"""AgentLoopManagerTQ: starts agent workers that publish through the store, and hands them prompts, fire and forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded, RolloutError
from verl_core.rollout import named_actor
from verl_core.rollout.agent_core import WorkerHealth
from verl_core.rollout.agent_loop import agent_loop_for
from verl_core.rollout.agent_worker import AgentLoopWorkerTQ, identity_of
from verl_core.rollout.agent_workers import MAX_RESTARTS, AgentWorkers
from verl_core.rollout.client import ServerHandle
from verl_core.trajectory import Prompt

if TYPE_CHECKING:
    from verl_core.transfer.endpoint import Endpoint


class AgentLoopManagerTQ:
    """Driver side of the agent workers. The workers are detached: another process may attach to them by the namespace.

    Attributes:
        attached: how many workers were found alive rather than started.
    """

    def __init__(self, workers: AgentWorkers, attached: int) -> None:
        self._workers, self.attached = workers, attached

    @classmethod
    def attach_or_launch(
        cls,
        config: RunConfig,
        namespace: str,
        endpoint: Endpoint,
        servers: Mapping[str, ServerHandle],
        actor_options: Mapping[str, Any] | None = None,
    ) -> AgentLoopManagerTQ:
        """Use the run's workers where they answer and were built for this configuration and store; else start them.

        Args:
            servers: handles of the inference servers by name.
            actor_options: Ray options of each worker; default: no CPUs reserved.

        Raises:
            ConfigError: the agent loop is not known.
            DeadlineExceeded: workers are not ready within trainer.init_timeout_s.
        """
        agent_loop_for(
            config.actor_rollout_ref.rollout.agent.default_agent_loop
        )  # a wrong name fails here, not in an actor
        identity = identity_of(config, endpoint.epoch)
        deadline = Deadline("agent workers to start", config.trainer.init_timeout_s)
        options = {"num_cpus": 0, "max_restarts": MAX_RESTARTS, **(actor_options or {})}
        actors: dict[str, Any] = {}
        attached = 0
        for name in worker_names(config):
            actor = named_actor.attach(name, namespace, identity)
            attached += actor is not None
            if actor is None:
                named_actor.remove(name, namespace, deadline)
                arguments = (config, name, identity, endpoint)
                actor = named_actor.start(AgentLoopWorkerTQ, name, namespace, options, *arguments)
            actors[name] = actor
        surplus = len(actors)
        while named_actor.find(f"agent-{surplus}", namespace) is not None:  # of a configuration with more workers
            named_actor.remove(f"agent-{surplus}", namespace, deadline)
            surplus += 1
        workers = AgentWorkers(actors, namespace, dict(servers))
        try:
            wait_until_ready(actors, deadline)
        except (RolloutError, DeadlineExceeded):
            workers.shutdown()
            raise
        return cls(workers, attached)

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """Hand the prompts to the workers and return. See `AgentWorkers.dispatch`."""
        self._workers.dispatch(prompts)

    def reset(self) -> None:
        """Forget what is under way, here and in the queue to the store; call it before a store that is used again is
        emptied, when a driver starts over."""
        self._workers.reset()

    def set_servers(self, servers: Mapping[str, ServerHandle]) -> None:
        """Servers joined or left."""
        self._workers.set_servers(servers)

    def health(self) -> dict[str, WorkerHealth | str]:
        """Each worker's own account, or why there is none."""
        return self._workers.health()

    def shutdown(self) -> None:
        """Kill the workers."""
        self._workers.shutdown()


def worker_names(config: RunConfig) -> list[str]:
    """Actor names of the run's agent workers."""
    return [f"agent-{index}" for index in range(config.actor_rollout_ref.rollout.agent.num_workers)]


def wait_until_ready(actors: Mapping[str, Any], deadline: Deadline) -> None:
    """Return when every constructor is done.

    Raises:
        RolloutError: one of them raised; carries its traceback.
        DeadlineExceeded: one of them is not done in time.
    """
    try:
        ray.get([actor.identity.remote() for actor in actors.values()], timeout=max(deadline.left, 0.1))
    except GetTimeoutError:
        raise deadline.expired() from None
    except RayActorError as error:
        raise RolloutError(f"an agent worker could not start: {error}") from error

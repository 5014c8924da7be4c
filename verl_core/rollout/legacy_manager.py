"""AgentLoopManager: the legacy path (trainer.use_v1=false). The same workers as on the new path, but settled groups
come back through Ray into the driver's own store. Owner of its workers: they end with this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.rollout import named_actor
from verl_core.rollout.agent_core import WorkerHealth
from verl_core.rollout.agent_loop import agent_loop_for
from verl_core.rollout.agent_manager import wait_until_ready, worker_names
from verl_core.rollout.agent_worker import AgentLoopWorker, identity_of
from verl_core.rollout.agent_workers import MAX_RESTARTS, AgentWorkers
from verl_core.rollout.client import ServerHandle
from verl_core.rollout.group_run import tag_of
from verl_core.rollout.settled_pump import SettledPump
from verl_core.trajectory import Prompt
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.interface import TrajectoryStore


class AgentLoopManager:
    """Driver side of the agent workers on the legacy path.

    Args:
        workers: running `AgentLoopWorker` actors.
        store: of this process; must be usable from several threads.
    """

    def __init__(self, workers: AgentWorkers, store: TrajectoryStore) -> None:
        self._workers, self._store = workers, store
        self._pump = SettledPump(workers.actors, store)

    @classmethod
    def launch(
        cls,
        config: RunConfig,
        namespace: str,
        servers: Mapping[str, ServerHandle],
        store: TrajectoryStore,
        actor_options: Mapping[str, Any] | None = None,
    ) -> AgentLoopManager:
        """Start the workers. Never attaches: results of an older driver's prompts mean nothing to this store.

        Raises:
            ConfigError: the agent loop is not known.
            DeadlineExceeded: workers are not ready within trainer.init_timeout_s.
        """
        agent_loop_for(config.actor_rollout_ref.rollout.agent.default_agent_loop)
        deadline = Deadline("agent workers to start", config.trainer.init_timeout_s)
        options = {"num_cpus": 0, "max_restarts": MAX_RESTARTS, **(actor_options or {})}
        actors: dict[str, Any] = {}
        for name in worker_names(config):
            named_actor.remove(name, namespace, deadline)
            arguments = (config, name, identity_of(config, "memory"))
            actors[name] = named_actor.start(AgentLoopWorker, name, namespace, options, *arguments, detached=False)
        wait_until_ready(actors, deadline)
        return cls(AgentWorkers(actors, namespace, dict(servers)), store)

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """Hand the prompts to the workers and return.

        Raises:
            RolloutError: all workers are dead, or results are no longer collected.
        """
        self._pump.check()
        self._store.write_tags([tag_of(prompt, GroupStatus.RUNNING, "") for prompt in prompts])
        self._workers.dispatch(prompts, self._pump.expect)

    def reset(self) -> None:
        """Forget what is under way: none of it reaches the store after this returns."""
        self._pump.forget()
        self._workers.reset()

    def set_servers(self, servers: Mapping[str, ServerHandle]) -> None:
        """Servers joined or left."""
        self._workers.set_servers(servers)

    def health(self) -> dict[str, WorkerHealth | str]:
        """Each worker's own account, or why there is none. Raises RolloutError if results are no longer collected."""
        self._pump.check()
        return self._workers.health()

    def shutdown(self) -> None:
        """Kill the workers. Groups under way are failed in the store."""
        self._workers.shutdown()
        self._pump.close()

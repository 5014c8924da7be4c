"""The agent workers: Ray actors that run agent loops. Invariant: no method blocks the event loop, so a worker that
answers `health` late is a worker whose agent loop blocks it.

They learn of the inference servers with each dispatch, not when they are built: Ray would keep handles given to a
constructor with the process that gave them, and could not restart the actor once that process is gone.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from verl_core.config.schema import RunConfig
from verl_core.rollout.agent_core import AgentCore, GroupSink, WorkerHealth
from verl_core.rollout.agent_loop import agent_loop_for
from verl_core.rollout.client import ServerHandle
from verl_core.rollout.clients import llm_client
from verl_core.rollout.committer import StoreCommitter
from verl_core.rollout.group_run import GroupRunner
from verl_core.rollout.outbox import Outbox
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.seeds import request_seed
from verl_core.rollout.trouble import Trouble
from verl_core.trajectory import Prompt
from verl_core.transfer.interface import Finished

if TYPE_CHECKING:
    from verl_core.transfer.endpoint import Endpoint


class AgentWorker:
    """What both kinds share. Built inside a Ray actor.

    Args:
        name: of the actor; the `owner` of its groups.
        identity: see `identity_of`.
    """

    def __init__(
        self,
        config: RunConfig,
        name: str,
        identity: str,
        sink: GroupSink,
        trouble: Trouble,
    ) -> None:
        rollout = config.actor_rollout_ref.rollout
        self._identity, self._life = identity, uuid.uuid4().hex
        self._pool: ServerPool[ServerHandle] = ServerPool({}, request_seed(rollout.seed, name, 0))
        agent = agent_loop_for(rollout.agent.default_agent_loop)(config)
        runner = GroupRunner(config, agent, llm_client(config, self._pool), name)
        self._core = AgentCore(runner, sink, trouble)

    async def start_groups(self, prompts: Sequence[Prompt], dispatch: str, servers: Mapping[str, ServerHandle]) -> str:
        """Start the groups and return at once, with the id of this process' life: groups die with it. Repeating a
        call with the same `dispatch` id changes nothing."""
        self._pool.replace(servers)
        self._core.start(prompts, dispatch)
        return self._life

    async def reset(self) -> None:
        """Forget all groups; none that was started before is published after this returns."""
        await self._core.reset()

    async def set_servers(self, servers: Mapping[str, ServerHandle]) -> None:
        """Make the pool exactly `servers`; requests in flight elsewhere may finish."""
        self._pool.replace(servers)

    async def identity(self) -> str:
        """What this worker was built for."""
        return self._identity

    async def health(self) -> WorkerHealth:
        """Groups under way and everything that went wrong in the background."""
        return self._core.health(self._pool.state())


class AgentLoopWorkerTQ(AgentWorker):
    """Publishes every settled group in the store at `endpoint`."""

    def __init__(self, config: RunConfig, name: str, identity: str, endpoint: Endpoint) -> None:
        from verl_core.transfer.tq_store import (
            TransferQueueStore,
        )  # seconds of import that the legacy path need not pay

        store = TransferQueueStore.join(endpoint, config.trainer.v1.buffer.call_timeout_s, listen=False)
        trouble = Trouble()
        super().__init__(config, name, identity, StoreCommitter(store, trouble), trouble)


class AgentLoopWorker(AgentWorker):
    """Legacy path: keeps settled groups until the driver takes them."""

    def __init__(self, config: RunConfig, name: str, identity: str) -> None:
        self._outbox = Outbox()
        super().__init__(config, name, identity, self._outbox, Trouble())

    async def take_settled(self, timeout_s: float) -> tuple[str, list[Finished]]:
        """The life of this process, and all groups that settled since the last call: at once when there are any, else
        after up to `timeout_s`."""
        return self._life, await self._outbox.take(timeout_s)


def identity_of(config: RunConfig, store: str) -> str:
    """Digest of what a worker depends on; an actor with another one must be replaced, not attached to.

    Args:
        store: epoch of the store, or a word for none.
    """
    return hashlib.sha256(f"{config!r}|{store}".encode()).hexdigest()

"""Which client a run's agent loops talk to. Invariant: where servers cut requests off in the middle of a run, clients
go on with them."""

from __future__ import annotations

from verl_core.config.schema import RunConfig
from verl_core.rollout.client import PoolClient, ServerHandle
from verl_core.rollout.interface import LLMClient
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient


def resumable(config: RunConfig) -> bool:
    """Whether generations of this run may be cut off and resumed: every mode but `sync` and the legacy path."""
    return config.trainer.use_v1 and config.trainer.v1.trainer_mode != "sync"


def llm_client(config: RunConfig, pool: ServerPool[ServerHandle]) -> LLMClient:
    """The client of one agent worker. In the synchronous modes nothing is cut off while somebody wants it, so there an
    aborted generation comes back as it is."""
    rollout = config.actor_rollout_ref.rollout
    if resumable(config):
        return ResumableClient(pool, rollout.request_timeout_s, rollout.pause_timeout_s)
    return PoolClient(pool, rollout.request_timeout_s)

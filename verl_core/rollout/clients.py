"""Which client a run's agent loops talk to. Invariant: where servers cut requests off in the middle of a run, clients
go on with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verl_core.config.schema import RunConfig
from verl_core.rollout.client import PoolClient, ServerHandle
from verl_core.rollout.interface import Generation, LLMClient, SamplingParams
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


class GreedyClient:
    """LLMClient of a greedy session: the likeliest token each time, whatever its agent loop asks for."""

    def __init__(self, client: LLMClient) -> None:
        self._client = client

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """See LLMClient."""
        greedy = replace(params, temperature=0.0, top_p=1.0, top_k=-1)
        return await self._client.generate(request_id, prompt_ids, greedy)

"""PoolClient: sends a generation to some server of the pool. Invariant: a request is bounded, is sent elsewhere when
its server cannot take it, and is never resumed or changed here: an aborted generation is returned as it is
(`resumable.py` goes on with it)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayTaskError

from verl_core.deadline import Deadline
from verl_core.errors import EngineDead
from verl_core.rollout.interface import Attempt, Generation, SamplingParams
from verl_core.rollout.pool import Seat, ServerPool


class RemoteGenerate(Protocol):
    """`generate` of a server's actor handle."""

    def remote(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, attempt: Attempt | None = None
    ) -> Awaitable[Generation]:
        """Send the request."""


class ServerHandle(Protocol):
    """What the client needs of a server: the actor handle of an LLMServer."""

    @property
    def generate(self) -> RemoteGenerate:
        """The remote method."""


class PoolClient:
    """LLMClient over a pool.

    Args:
        pool: shared by all requests of the worker.
        request_timeout_s: budget of one generation, retries included.
    """

    def __init__(self, pool: ServerPool[ServerHandle], request_timeout_s: float) -> None:
        self._pool, self._timeout_s = pool, request_timeout_s

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """One completion.

        Raises:
            DeadlineExceeded: the budget is spent; carries the pool's state.
            RolloutError: the request can never succeed.
        """
        deadline = Deadline(f"generation {request_id}", self._timeout_s, self._pool.state)
        while True:
            seat = await self._pool.acquire(request_id, deadline)
            generation = await self.ask(seat, request_id, prompt_ids, params, deadline)
            if generation is not None:
                return generation
            deadline.check()

    async def ask(
        self,
        seat: Seat[ServerHandle],
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        wait: Deadline,
        attempt: Attempt | None = None,
    ) -> Generation | None:
        """One try at the server of `seat`, which is given back. None when that server died or takes no requests now: it
        then rests, so that the pool offers another one.

        Raises:
            DeadlineExceeded: no answer in time.
            RolloutError: the request can never succeed.
        """
        generation = None
        try:
            generation = await self._answer(seat.handle.generate.remote(request_id, prompt_ids, params, attempt), wait)
        except (EngineDead, RayActorError) as error:
            self._pool.mark_dead(seat, _first_line(error))
        finally:
            self._pool.release(seat, served=generation is not None)
        return generation

    async def _answer(self, reference: Awaitable[Generation], wait: Deadline) -> Generation:
        reply = asyncio.ensure_future(reference)
        try:
            await asyncio.wait([reply], timeout=wait.left)
            if not reply.done():
                raise wait.expired()
            return reply.result()
        except RayTaskError as error:
            raise _cause(error) from error
        finally:
            if not reply.done():  # out of time, or cancelled by the caller: free the server's side too
                reply.cancel()
                _cancel_remote(reference)


def _cause(error: RayTaskError) -> BaseException:
    """What the server raised, as it raised it."""
    return error.cause if isinstance(error.cause, BaseException) else error


def _cancel_remote(reference: Any) -> None:
    if isinstance(reference, ray.ObjectRef):
        ray.cancel(reference)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"

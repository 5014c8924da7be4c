"""ResumableClient: a generation that is cut off goes on where it stopped. Invariant: the caller gets a whole sample of
at most `max_tokens` tokens, each with the log-prob and the weight version it was sampled with, or an error.

How a sample depends on the cuts: the tokens between two cuts are those of a lone request with the prompt and all tokens
before it, under the seed `attempt_seed(seed, tokens before it)`. So they are a function of weights, prompt, seed and
where the cuts were; when and on which server the parts ran changes nothing.

Two budgets. An engine may work `request_timeout_s` for a request, all attempts together. All else (parked at a closed
gate, cut off, waiting for a server, lost with a server that died) may take `pause_timeout_s`, all together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded
from verl_core.rollout.client import PoolClient, ServerHandle
from verl_core.rollout.generation import checked_generation, joined, shortened
from verl_core.rollout.interface import Attempt, Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.seeds import attempt_seed

# After an attempt that was cut off before its first token. The first rest lets those that have tokens go first when a
# server cuts all off; the longer ones are for servers that cut again and again, and count from the attempt's start.
FIRST_REST_S, LONGEST_REST_S = 0.05, 1.0
ANSWER_GRACE_S = 5.0  # the server's own time-outs come first: they know more
_NOTHING = Generation((), (), "abort", ())


@dataclass(slots=True)
class _Course:
    """One request on its way: what it has, and the seconds it may still take."""

    request_id: str
    budget: int
    work_s: float
    pause_s: float
    kept: Generation = _NOTHING
    attempts: int = 0
    idle: int = 0
    began: float = 0.0
    since: float = field(default_factory=time.time)

    @property
    def done(self) -> int:
        """Tokens so far."""
        return len(self.kept.token_ids)

    def spend(self, seconds: float, worked_s: float) -> None:
        """Charge `seconds`, `worked_s` of them as work."""
        worked = min(seconds, worked_s)
        self.work_s -= worked
        self.pause_s -= seconds - worked

    def keep(self, reply: Generation) -> None:
        """Append a part."""
        self.idle = 0 if reply.token_ids else self.idle + 1
        self.kept = shortened(joined(self.kept, reply), self.budget)
        if self.kept.stop_reason == "abort" and self.done == self.budget:
            self.kept = replace(self.kept, stop_reason="length")

    @property
    def rest_s(self) -> float:
        """What to wait before the next attempt; 0 after one that brought tokens."""
        if not self.idle:
            return 0.0
        apart = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(self.idle - 1, 16))
        return max(FIRST_REST_S, apart - (time.monotonic() - self.began))

    def state(self) -> str:
        """For error messages."""
        left = f"{max(0.0, self.work_s):.1f} s of work and {max(0.0, self.pause_s):.1f} s of pause left"
        return f"{self.done} of {self.budget} tokens after {self.attempts} attempts, {left}"


class ResumableClient:
    """LLMClient over a pool whose servers may cut requests off, sleep, change weights, join and leave.

    Args:
        pool: shared by all requests of the worker.
        request_timeout_s: work of engines for one generation.
        pause_timeout_s: everything else that it waits for.
    """

    def __init__(self, pool: ServerPool[ServerHandle], request_timeout_s: float, pause_timeout_s: float) -> None:
        self._pool, self._client = pool, PoolClient(pool, request_timeout_s)
        self._work_s, self._pause_s = request_timeout_s, pause_timeout_s

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """One whole completion: stop reason `stop` or `length`.

        Raises:
            DeadlineExceeded: one of the two budgets is spent; says what the request has and the pool's state.
            RolloutError: the request can never succeed, or a server's answer contradicts itself.
        """
        course = _Course(request_id, params.max_tokens, self._work_s, self._pause_s)
        while True:
            reply = await self._attempt(course, prompt_ids, params)
            if reply is not None:
                course.keep(checked_generation(reply))
                if course.kept.stop_reason != "abort":
                    return course.kept
            await self._rest(course)
            self._check(course)

    async def _attempt(self, course: _Course, prompt_ids: Sequence[int], params: SamplingParams) -> Generation | None:
        """Ask one server for what is missing; None when it could not take the request."""
        began = course.began = time.monotonic()
        course.attempts += 1
        seat = await self._pool.acquire(
            course.request_id, self._deadline(f"a server for generation {course.request_id}", course, course.pause_s)
        )
        course.spend(time.monotonic() - began, 0.0)
        self._check(course)
        attempt = Attempt(course.done, course.work_s, course.pause_s, course.since)
        missing = replace(params, max_tokens=course.budget - course.done, seed=attempt_seed(params.seed, course.done))
        longest = course.work_s + course.pause_s + ANSWER_GRACE_S
        wait = self._deadline(f"generation {course.request_id}", course, longest)
        reply = await self._client.ask(
            seat, course.request_id, [*prompt_ids, *course.kept.token_ids], missing, wait, attempt
        )
        course.spend(wait.waited, 0.0 if reply is None else reply.worked_s)
        return reply

    async def _rest(self, course: _Course) -> None:
        if course.rest_s:
            began = time.monotonic()
            await asyncio.sleep(max(0.0, min(course.rest_s, course.pause_s)))
            course.spend(time.monotonic() - began, 0.0)

    def _check(self, course: _Course) -> None:
        """Raise DeadlineExceeded if one of the budgets is spent."""
        for name, left, whole in (
            ("engines to work for generation", course.work_s, self._work_s),
            ("generation to go on: the pauses of generation", course.pause_s, self._pause_s),
        ):
            if left <= 0:
                raise DeadlineExceeded(f"{name} {course.request_id}", whole - left, self._state(course))

    def _deadline(self, name: str, course: _Course, seconds: float) -> Deadline:
        return Deadline(name, seconds, lambda: self._state(course))

    def _state(self, course: _Course) -> str:
        return f"{course.state()}; {self._pool.state()}"

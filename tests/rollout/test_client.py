"""PoolClient against servers that die, hang, refuse: fakes for the many cases, Ray actors for the real errors."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from verl_core.errors import DeadlineExceeded, EngineDead, RolloutError
from verl_core.rollout.client import PoolClient
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.trajectory import Segment

PARAMS = SamplingParams(4, seed=9)
DONE = Generation((1, 2), (-0.1, -0.2), "stop", (Segment(0, 2),))
CUT = Generation((1,), (-0.1,), "abort", (Segment(0, 1),))


class FakeServer:
    """Handle whose `generate.remote` runs `behave(call number)`."""

    def __init__(self, behave: Callable[[int], Awaitable[Generation]]) -> None:
        self.seen: list[tuple[str, Sequence[int], SamplingParams]] = []
        self.generate = SimpleNamespace(remote=self._remote)
        self._behave = behave

    def _remote(
        self, request_id: str, ids: Sequence[int], params: SamplingParams, attempt: None
    ) -> Awaitable[Generation]:
        assert attempt is None  # this client promises the server nothing
        self.seen.append((request_id, ids, params))
        return self._behave(len(self.seen))


def always(result: Generation | Exception) -> Callable[[int], Awaitable[Generation]]:
    async def behave(_: int) -> Generation:
        if isinstance(result, Exception):
            raise result
        return result

    return behave


def ask(servers: dict[str, Any], timeout_s: float = 5.0, requests: int = 1) -> list[Generation]:
    async def main() -> list[Generation]:
        pool: ServerPool[Any] = ServerPool(servers)
        client = PoolClient(pool, timeout_s)
        found = await asyncio.gather(*(client.generate(f"u{i}_0", [7, 8], PARAMS) for i in range(requests)))
        assert set(pool.loads.values()) <= {0}  # every seat came back
        return found

    return asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("death", [EngineDead("killed"), ActorUnavailableError("restarting", b"0" * 16)])
def test_a_dead_server_is_left_for_another(death: Exception) -> None:
    dead, alive = FakeServer(always(death)), FakeServer(always(DONE))
    assert ask({"dead": dead, "alive": alive}, requests=10) == [DONE] * 10
    assert len(alive.seen) == 10
    assert {call[2] for call in alive.seen} == {PARAMS}


def test_a_server_that_comes_back_is_used_again() -> None:
    async def behave(number: int) -> Generation:
        if number < 3:
            raise EngineDead("not yet")
        return DONE

    server = FakeServer(behave)
    assert ask({"only": server}) == [DONE]
    assert len(server.seen) == 3


def test_all_dead_gives_up_with_the_pools_state() -> None:
    server = FakeServer(always(EngineDead("no memory left")))
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"generation u0_0.*only: .*EngineDead: no memory left"):
        ask({"only": server}, timeout_s=1.0)
    assert time.monotonic() - start < 3
    assert len(server.seen) < 6  # rests between the attempts: 0, 0.25, 0.75 s


def test_a_hanging_server_is_given_up_in_time_and_the_request_cancelled() -> None:
    cancelled = []

    async def behave(_: int) -> Generation:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return DONE

    with pytest.raises(DeadlineExceeded, match="generation u0_0"):
        ask({"slow": FakeServer(behave)}, timeout_s=0.3)
    assert cancelled == [True]


def test_a_request_that_can_never_succeed_is_not_repeated() -> None:
    server = FakeServer(always(RolloutError("too long")))
    with pytest.raises(RolloutError, match="too long"):
        ask({"a": server, "b": server})
    assert len(server.seen) == 1


def test_an_aborted_generation_is_returned_as_it_is() -> None:
    server = FakeServer(always(CUT))
    assert ask({"only": server}) == [CUT]
    assert len(server.seen) == 1


def test_cancelling_the_caller_frees_the_seat_and_the_request() -> None:
    async def behave(_: int) -> Generation:
        await asyncio.sleep(60)
        return DONE

    async def main() -> dict[str, int]:
        pool: ServerPool[Any] = ServerPool({"s": FakeServer(behave)})
        task = asyncio.create_task(PoolClient(pool, 30).generate("u_0", [1], PARAMS))
        await asyncio.sleep(0.05)
        assert pool.loads == {"s": 1}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pool.loads

    assert asyncio.run(main()) == {"s": 0}


class RealServer:
    """Async actor: `die` ends its process, `hang` never answers until cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, attempt: None
    ) -> Generation:
        if request_id.startswith("die"):
            await asyncio.sleep(0.1)
            os._exit(1)
        if request_id.startswith("dead"):
            raise EngineDead("the engine process is gone")
        if request_id.startswith("bad"):
            raise RolloutError("prompt too long")
        if request_id.startswith("hang"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return DONE

    async def cancellations(self) -> int:
        return self.cancelled


async def _through(servers: dict[str, Any], request_id: str, timeout_s: float) -> Generation:
    return await PoolClient(ServerPool(servers), timeout_s).generate(request_id, [1], PARAMS)


def test_real_actors(ray_cluster: None) -> None:
    import ray

    server = ray.remote(RealServer).options(num_cpus=0)
    steady, mortal = server.remote(), server.remote()
    assert asyncio.run(_through({"s": steady}, "fine_0", 30)) == DONE

    with pytest.raises(RolloutError, match=r"^prompt too long$") as caught:  # the server's own words
        asyncio.run(_through({"s": steady}, "bad_0", 30))
    assert type(caught.value) is RolloutError

    with pytest.raises(DeadlineExceeded, match="EngineDead: the engine process is gone"):
        asyncio.run(_through({"s": steady}, "dead_0", 1.0))

    with pytest.raises(DeadlineExceeded, match="generation hang_0"):
        asyncio.run(_through({"s": steady}, "hang_0", 0.5))
    limit = time.monotonic() + 10
    while ray.get(steady.cancellations.remote()) == 0 and time.monotonic() < limit:
        time.sleep(0.05)
    assert ray.get(steady.cancellations.remote()) == 1

    async def killed_in_flight() -> list[Generation]:
        pool: ServerPool[Any] = ServerPool({"mortal": mortal})
        client = PoolClient(pool, 30)
        waiting = [asyncio.create_task(client.generate(name, [1], PARAMS)) for name in ("hang_0", "hang_1")]
        await asyncio.sleep(0.3)
        ray.kill(mortal)
        pool.add("steady", replacement)
        return await asyncio.gather(*waiting)

    replacement = FakeServer(always(DONE))
    assert asyncio.run(asyncio.wait_for(killed_in_flight(), 30)) == [DONE, DONE]
    ray.kill(steady)

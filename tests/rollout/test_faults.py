"""Real processes that die, leave and come back under resumable clients. The bounds are those of docs/errors.md.

Server actors with the scripted engine; the engine's own process (vLLM's AsyncLLM) is killed in a slow test.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.rollout.local import bound_s
from verl_core.config.schema import RunConfig
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.servers import Servers
from verl_core.rollout.usage import ServerUsage
from verl_core.weights.shm import ShmSender, weights_folder

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]
PROMPT_IDS = [10, 20, 30]
TOKENS = 120


def config_for(folder: Path, name: str = "scripted", servers: int = 2) -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(folder)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.num_servers, rollout.kv_cache_bytes = name, servers, 64 << 20  # type: ignore[assignment]
    rollout.scripted_delay_s = 0.03 if name == "scripted" else 0.0
    config.data.max_prompt_length, config.data.max_response_length = 64, 800
    config.trainer.init_timeout_s, rollout.request_timeout_s, rollout.pause_timeout_s = 240.0, 120.0, 120.0
    config.trainer.v1.trainer_mode = "separate_async"
    return config


FOLDER = weights_folder(f"test-faults-{os.getpid()}")


@pytest.fixture(scope="module")
def sender() -> Iterator[ShmSender]:
    made = ShmSender(FOLDER, 1 << 16)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def servers(ray_cluster: None, policy_folder: Path, sender: ShmSender) -> Iterator[Servers]:
    started = Servers.attach_or_launch(config_for(policy_folder), "test-faults", FOLDER, "cpu")
    yield started
    started.shutdown()


def play(scenario: Callable[[ServerPool[Any], ResumableClient], Any], handles: dict[str, Any]) -> Any:
    async def main() -> Any:
        pool: ServerPool[Any] = ServerPool(handles)
        found = await scenario(pool, ResumableClient(pool, 120, 120))
        assert set(pool.loads.values()) <= {0}
        return found

    return asyncio.run(asyncio.wait_for(main(), 300))


def ask(client: ResumableClient, count: int, tokens: int = TOKENS, first: int = 0) -> list[asyncio.Task[Generation]]:
    numbers = range(first, first + count)
    return [
        asyncio.create_task(client.generate(f"u{i}_0", PROMPT_IDS, SamplingParams(tokens, seed=i))) for i in numbers
    ]


def check(model: Any, found: list[Generation], version: int) -> None:
    """Whole samples, log-probs of the torch model."""
    for generation in found:
        assert generation.stop_reason in ("stop", "length")
        assert [segment.weight_version for segment in generation.segments] == [version]
        ids = torch.tensor([[*PROMPT_IDS, *generation.token_ids]])
        with torch.no_grad():
            rows = torch.log_softmax(model(ids).logits[0, len(PROMPT_IDS) - 1 : -1], -1)
        want = rows.gather(1, ids[0, len(PROMPT_IDS) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(generation.log_probs), want, atol=1e-3, rtol=0)


async def elsewhere(call: Callable[[], Any]) -> Any:
    """A blocking call of the driver, off the loop on which the clients live."""
    return await asyncio.to_thread(call)


def pid_of(servers: Servers, name: str) -> int:
    state = servers.states()[name]
    assert not isinstance(state, str)
    return state.pid


async def restarted(servers: Servers, name: str, old: int) -> None:
    """Until Ray has another process under the name."""
    while True:
        state = (await elsewhere(servers.states))[name]
        if not isinstance(state, str) and state.pid != old and state.stage == "ready":
            return
        await asyncio.sleep(0.2)


def test_a_server_killed_while_it_generates(servers: Servers, make_policy: Callable[..., Any]) -> None:
    """Cut once, so that clients hold tokens; then one of two servers is killed: the other goes on with them."""

    async def scenario(pool: ServerPool[Any], client: ResumableClient) -> tuple[list[Generation], float]:
        tasks = ask(client, 8)
        await asyncio.sleep(0.6)
        assert await elsewhere(servers.abort) > 0
        await asyncio.sleep(0.3)
        at_risk = [task for task in tasks if not task.done()]
        assert at_risk
        assert min(pool.loads.values()) > 0
        victim = pid_of(servers, "server-0")
        pool_before = await elsewhere(servers.usage)
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        while pool.loads["server-0"] > 0:  # all of its requests are elsewhere
            await asyncio.sleep(0.02)
        moved = time.monotonic() - began
        found = list(await asyncio.gather(*tasks))
        usage = (await elsewhere(servers.usage))["server-1"].since(pool_before["server-1"])
        assert usage.resumed >= 1
        assert usage.tokens_read_again >= 1
        await restarted(servers, "server-0", victim)
        return found, moved

    found, moved = play(scenario, servers.handles)
    print(f"server killed: its requests were elsewhere after {moved:.2f} s")
    assert moved < bound_s("server actor killed while it generates, others live")
    check(make_policy(True, 0), found, 0)


def test_the_only_server_killed_while_it_generates(servers: Servers, make_policy: Callable[..., Any]) -> None:
    """Nobody else is there: requests wait for its restart and go on with the tokens they kept."""

    async def scenario(pool: ServerPool[Any], client: ResumableClient) -> tuple[list[Generation], int, float]:
        tasks = ask(client, 4, first=20)
        await asyncio.sleep(0.6)
        await elsewhere(servers.part(["server-0"]).abort)
        await asyncio.sleep(0.2)
        victim = pid_of(servers, "server-0")
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        await restarted(servers, "server-0", victim)
        took = time.monotonic() - began
        found = list(await asyncio.gather(*tasks))
        usage = (await elsewhere(servers.usage))["server-0"]
        return found, usage.tokens_read_again, took

    found, kept, took = play(scenario, {"server-0": servers.handles["server-0"]})
    print(f"only server killed: it served again after {took:.1f} s; {kept} tokens were kept")
    assert took < bound_s("the only server killed while it generates")
    assert kept >= 1
    check(make_policy(True, 0), found, 0)


def test_servers_leave_and_join_while_requests_run(
    servers: Servers, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    """Lending: server-1 is taken back in the middle, misses a publication, and is lent again with the new weights."""
    staying, leaving = servers.part(["server-0"]), servers.part(["server-1"])

    async def used(before: dict[str, ServerUsage]) -> dict[str, ServerUsage]:
        return {name: usage.since(before.get(name)) for name, usage in (await elsewhere(servers.usage)).items()}

    async def scenario(pool: ServerPool[Any], client: ResumableClient) -> list[Generation]:
        tasks = ask(client, 8, first=40)
        await asyncio.sleep(0.6)
        assert min(pool.loads.values()) > 0
        before = await used({})
        began = time.monotonic()
        await elsewhere(lambda: leaving.gate("reject"))
        pool.replace(staying.handles)
        await elsewhere(lambda: leaving.sleep(abort=True))
        took = time.monotonic() - began
        print(f"a server left after {took:.2f} s")
        assert took < bound_s("server leaves the pool while requests run")
        assert (await used(before))["server-1"].aborted >= 1
        assert (await used(before))["server-1"].inside == 0
        found = list(await asyncio.gather(*tasks))  # nobody waits for the one that sleeps
        assert (await used(before))["server-0"].resumed == (await used(before))["server-1"].aborted
        manifest = sender.publish(make_policy(True, 1).named_parameters(), 1)
        await elsewhere(lambda: staying.update_weights(manifest))
        assert await elsewhere(servers.version) == -1
        await elsewhere(lambda: leaving.update_weights(manifest))
        await elsewhere(leaving.wake)
        await elsewhere(lambda: leaving.gate("open"))
        pool.replace(servers.handles)
        assert await elsewhere(servers.version) == 1
        again = await asyncio.gather(*ask(client, 8, 12, first=60))
        assert (await used(before))["server-1"].finished >= 1
        check(make_policy(True, 1), list(again), 1)
        return found

    check(make_policy(True, 0), play(scenario, dict(servers.handles)), 0)


@pytest.mark.slow
def test_the_engine_of_a_server_killed_while_it_generates(
    policy_folder: Path, make_policy: Callable[..., Any], tmp_path: Path
) -> None:
    """vLLM's engine in its own process, killed under its server: the server leaves, Ray starts another one, requests go
    on with what they kept."""
    config = config_for(policy_folder, "vllm", 1)
    config.actor_rollout_ref.rollout.engine_process = "async"
    servers = Servers.attach_or_launch(config, "test-faults-engine", tmp_path / "weights", "cpu")

    async def scenario(pool: ServerPool[Any], client: ResumableClient) -> tuple[list[Generation], float]:
        tasks = ask(client, 16, 800)
        await asyncio.sleep(0.5)
        await elsewhere(servers.abort)
        await asyncio.sleep(0.1)
        assert any(not task.done() for task in tasks)
        server = psutil.Process(pid_of(servers, "server-0"))
        engines = [child for child in server.children(recursive=True) if "EngineCore" in " ".join(child.cmdline())]
        began = time.monotonic()
        for engine in engines or server.children(recursive=True):
            engine.kill()
        found = list(await asyncio.gather(*tasks))
        return found, time.monotonic() - began

    try:
        found, took = play(scenario, servers.handles)
    finally:
        servers.shutdown()
    print(f"engine killed: all requests whole after {took:.1f} s")
    assert took < bound_s("vLLM engine process killed under its only server")
    check(make_policy(True, 0), found, 0)

"""A server of an asynchronous mode: weights change while it generates, servers leave, and it accounts for its use.

LLMServer and ScriptedEngine in this process; `test_resumable_vllm.py` does the change of weights with the real engine.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from tests.rollout.local import bound_s, handle_of
from verl_core.config.schema import RunConfig
from verl_core.errors import DeadlineExceeded, EngineDead, WeightError
from verl_core.rollout.interface import Attempt, Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.server import LLMServer
from verl_core.rollout.usage import ServerUsage, UsageMeter
from verl_core.weights.interface import WeightManifest
from verl_core.weights.manifest import read_current
from verl_core.weights.shm import ShmSender

T = TypeVar("T")
PROMPT_IDS = [10, 20, 30]
TOKENS = 60


@pytest.fixture
def config(policy_folder: Path) -> RunConfig:
    made = RunConfig()
    made.actor_rollout_ref.model.path = str(policy_folder)
    rollout = made.actor_rollout_ref.rollout
    rollout.name, rollout.scripted_delay_s, rollout.request_timeout_s = "scripted", 0.01, 20.0
    made.data.max_prompt_length, made.data.max_response_length = 64, 200
    made.trainer.v1.trainer_mode = "separate_async"
    return made


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[ShmSender]:
    made = ShmSender(tmp_path / "weights", 1 << 16)
    yield made
    made.close()


def serve(
    config: RunConfig, folder: Path, scenario: Callable[..., Coroutine[Any, Any, T]], count: int = 1, **more: Any
) -> T:
    """Run the scenario against `count` servers of its own."""

    async def play() -> T:
        servers: list[LLMServer] = []
        try:
            for index in range(count):
                servers.append(LLMServer(index, config, "cpu", str(folder), **more))
                await servers[-1].ready()  # one after another: transformers cannot load two models at the same time
            return await scenario(*servers)
        finally:
            for server in servers:
                await server.shutdown()

    return asyncio.run(asyncio.wait_for(play(), 90))


def client_of(*servers: LLMServer, work_s: float = 20.0, pause_s: float = 20.0) -> ResumableClient:
    pool: ServerPool[Any] = ServerPool({f"server-{i}": handle_of(server) for i, server in enumerate(servers)})
    return ResumableClient(pool, work_s, pause_s)


def ask(client: ResumableClient, seed: int, tokens: int = TOKENS) -> asyncio.Task[Generation]:
    work = client.generate(f"u{seed}_0", PROMPT_IDS, SamplingParams(tokens, seed=seed))
    return asyncio.create_task(work)


async def long_seeds(server: LLMServer, count: int) -> list[int]:
    """Seeds whose undisturbed response does not end before TOKENS."""
    await server.ready()
    engine: Any = server._engine
    delay, engine._rollout.scripted_delay_s = engine._rollout.scripted_delay_s, 0.0
    found = []
    for seed in range(200):
        reply = await engine.generate("probe", PROMPT_IDS, SamplingParams(TOKENS, seed=seed))
        if reply.stop_reason == "length":
            found.append(seed)
        if len(found) == count:
            break
    engine._rollout.scripted_delay_s = delay
    return found


async def sampled(server: LLMServer, count: int) -> None:
    """Until every request inside has `count` tokens, and there is one."""
    running: Any = server._engine._running  # type: ignore[attr-defined]
    while not running or any(len(request.tokens) < count for request in running):
        await asyncio.sleep(0.005)


def expected(model: Any, generation: Generation) -> torch.Tensor:
    ids = torch.tensor([[*PROMPT_IDS, *generation.token_ids]])
    with torch.no_grad():
        rows = torch.log_softmax(model(ids).logits[0, len(PROMPT_IDS) - 1 : -1], -1)
    return rows.gather(1, ids[0, len(PROMPT_IDS) :, None])[:, 0]


# ---- weights change while requests run


def test_each_segment_is_of_its_weights(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    """Two publications into four running requests: every log-prob is that of the torch model of its version."""
    models = {version: make_policy(True, version) for version in range(3)}

    async def scenario(server: LLMServer) -> tuple[list[Generation], ServerUsage, float]:
        client = client_of(server)
        tasks = [ask(client, seed) for seed in await long_seeds(server, 4)]
        for version in (1, 2):
            await sampled(server, 8)
            await server.update_weights(sender.publish(models[version].named_parameters(), version))
        found = list(await asyncio.gather(*tasks))
        return found, await server.usage(), (await server.ping()).switch_s

    found, usage, switch_s = serve(config, tmp_path, scenario)
    cut_twice = 0
    for generation in found:
        at = 0
        for segment in generation.segments:
            span = slice(at, at + segment.length)
            want = expected(models[segment.weight_version], generation)[span]
            torch.testing.assert_close(torch.tensor(generation.log_probs[span]), want, atol=2e-5, rtol=0)
            at += segment.length
        assert at == len(generation.token_ids) <= TOKENS
        cut_twice += [segment.weight_version for segment in generation.segments] == [0, 1, 2]
    assert cut_twice >= 1
    assert (usage.finished, usage.failed, usage.tokens_discarded) == (4, 0, 0)
    assert usage.aborted >= 4  # the second publication may meet an end token before it
    assert usage.resumed == usage.aborted
    assert usage.tokens == sum(len(generation.token_ids) for generation in found)
    assert 0 < switch_s < 5


def test_generation_goes_on_while_weights_are_received(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    """Receiving takes 0.6 s here, standing still a small part of it."""

    class Slow(ScriptedEngine):
        def _received(self, manifest: WeightManifest) -> dict[str, torch.Tensor]:
            time.sleep(0.6)
            return super()._received(manifest)

    manifest = sender.publish(make_policy(True, 1).named_parameters(), 1)

    async def scenario(server: LLMServer) -> tuple[int, float, Generation]:
        (seed,) = await long_seeds(server, 1)
        task = ask(client_of(server), seed, 200)
        await sampled(server, 2)
        update = asyncio.create_task(server.update_weights(manifest))
        await asyncio.sleep(0.1)
        before = max(len(request.tokens) for request in server._engine._running)  # type: ignore[attr-defined]
        await asyncio.sleep(0.4)
        assert not update.done()
        meanwhile = max(len(request.tokens) for request in server._engine._running)  # type: ignore[attr-defined]
        await update
        return meanwhile - before, (await server.ping()).switch_s, await task

    engine = Slow(config, config.actor_rollout_ref.model.path)
    meanwhile, switch_s, generation = serve(config, tmp_path, scenario, engine=engine)
    assert meanwhile >= 5
    assert switch_s < 0.4
    assert [segment.weight_version for segment in generation.segments] in ([0, 1], [0])


def test_a_refused_publication_disturbs_nobody(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    bad = sender.publish(list(make_policy(True, 1).named_parameters())[1:], 1)

    async def scenario(server: LLMServer) -> None:
        (seed,) = await long_seeds(server, 1)
        alone = await ask(client_of(server), seed)
        task = ask(client_of(server), seed)
        await sampled(server, 3)
        with pytest.raises(WeightError, match="missing"):
            await server.update_weights(bad)
        assert await task == alone
        assert (await server.usage()).aborted == 0
        assert (await server.ping()).version == 0

    serve(config, tmp_path, scenario)


def test_a_caller_that_goes_away_does_not_stop_the_change_half_way(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    async def scenario(server: LLMServer) -> None:
        for version in range(1, 6):  # cancelled earlier and later
            manifest = sender.publish(make_policy(True, version).named_parameters(), version)
            call = asyncio.create_task(server.update_weights(manifest))
            await asyncio.sleep(0.003 * (version - 1))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            if version == 1:
                continue  # cancelled before it began
            while await server.version() != version:
                await asyncio.sleep(0.01)
            assert await server.update_weights(manifest) == version
        assert (await server.ping()).gate.startswith("gate open, 0 holds")

    serve(config, tmp_path, scenario)


def test_a_trainer_that_dies_while_it_publishes_leaves_the_old_version(
    config: RunConfig, tmp_path: Path, make_policy: Callable[..., Any]
) -> None:
    """Killed after half of the tensors, by itself, with the signal that no program sees coming."""
    folder = tmp_path / "weights"
    torch.save(dict(make_policy(True, 2).named_parameters()), tmp_path / "named.pt")
    code = f"""
import os, signal, torch
from verl_core.weights.shm import ShmSender
sender = ShmSender({str(folder)!r}, 1 << 14)
named = list(torch.load({str(tmp_path / "named.pt")!r}).items())
sender.publish(named, 1)
def dying():
    yield from named[: len(named) // 2]
    os.kill(os.getpid(), signal.SIGKILL)
sender.publish(dying(), 2)
"""

    async def scenario(server: LLMServer) -> None:
        died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], timeout=120)
        assert died.returncode == -signal.SIGKILL
        manifest = read_current(folder)
        assert manifest is not None
        assert await server.update_weights(manifest) == 1
        reply = await ask(client_of(server), 1, 8)
        want = expected(make_policy(True, 2), reply)
        torch.testing.assert_close(torch.tensor(reply.log_probs), want, atol=2e-5, rtol=0)
        # the trainer that comes after it publishes over the ruins
        began = time.monotonic()
        sender = ShmSender(folder, 1 << 14)
        assert await server.update_weights(sender.publish(make_policy(True, 3).named_parameters(), 2)) == 2
        sender.close()
        reply = await ask(client_of(server), 1, 8)
        assert time.monotonic() - began < bound_s("trainer killed while it writes weights")
        want = expected(make_policy(True, 3), reply)
        torch.testing.assert_close(torch.tensor(reply.log_probs), want, atol=2e-5, rtol=0)

    serve(config, folder, scenario)


def test_a_publication_that_reached_one_of_two_servers_is_whole_on_both(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    models = [make_policy(True, 0), make_policy(True, 1)]

    async def scenario(first: LLMServer, second: LLMServer) -> None:
        manifest = sender.publish(models[1].named_parameters(), 1)
        await first.update_weights(manifest)  # and here the trainer died
        for server, model, version in ((first, models[1], 1), (second, models[0], 0)):
            reply = await ask(client_of(server), 3, 8)
            assert {segment.weight_version for segment in reply.segments} == {version}
            torch.testing.assert_close(torch.tensor(reply.log_probs), expected(model, reply), atol=2e-5, rtol=0)
        assert [await server.update_weights(manifest) for server in (first, second)] == [1, 1]

    serve(config, tmp_path, scenario, count=2)


class SilentDevice(ScriptedEngine):
    """Takes weights by `transfer`, as an engine on a GPU."""

    async def transfer(self, method: str, *arguments: Any) -> None:
        """Takes the version."""
        if method == "finish_weight_update":
            self.version = arguments[0]


def test_a_transfer_between_devices_holds_the_gate_and_must_be_finished(config: RunConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.rollout.request_timeout_s = 3.0
    left: list[int] = []

    async def scenario(server: LLMServer) -> None:
        (seed,) = await long_seeds(server, 1)
        task = ask(client_of(server), seed)
        await sampled(server, 3)
        await server.transfer("start_weight_update")
        assert (await server.usage()).aborted == 1
        await asyncio.sleep(0.1)
        assert (await server.ping()).gate.startswith("gate open, 1 holds, 1 parked, 0 inside")
        await server.transfer("finish_weight_update", 1)
        assert [segment.weight_version for segment in (await task).segments] == [0, 1]
        assert 0.1 <= (await server.ping()).switch_s < 2
        await server.transfer("start_weight_update")  # and now the trainer dies
        began = time.monotonic()
        while not left:
            await asyncio.sleep(0.1)
        assert 3.0 <= time.monotonic() - began < bound_s("transfer between devices never finished")
        with pytest.raises(EngineDead, match="may be a mixture"):
            await server.generate("r", PROMPT_IDS, SamplingParams(4))

    engine = SilentDevice(config, config.actor_rollout_ref.model.path)
    serve(config, tmp_path, scenario, engine=engine, leave=lambda: left.append(1))


# ---- pauses


def test_sleep_cuts_off_and_wake_goes_on_with_what_there_was(config: RunConfig, tmp_path: Path) -> None:
    """colocate_async. The pause is longer than the time that the engine may work."""
    config.actor_rollout_ref.rollout.request_timeout_s = 1.0

    async def scenario(server: LLMServer) -> None:
        (seed,) = await long_seeds(server, 1)
        task = ask(client_of(server, work_s=1.0, pause_s=20.0), seed, 40)
        await sampled(server, 5)
        await server.sleep(1, True)
        done, _ = await asyncio.wait([task], timeout=1.5)
        assert not done
        assert (await server.ping()).gate.startswith("gate open, 1 holds, 1 parked")
        busy = (await server.usage()).busy_s
        await asyncio.sleep(0.1)
        assert (await server.usage()).busy_s == busy
        await server.wake()
        assert (await task).stop_reason in ("length", "stop")
        usage = await server.usage()
        assert (usage.finished, usage.aborted, usage.resumed) == (1, 1, 1)

    serve(config, tmp_path, scenario)


def test_parked_for_longer_than_a_pause_may_last(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.sleep(1, True)
        with pytest.raises(DeadlineExceeded, match=r"the gate to open for generation u1_0 on server 0.*1 parked"):
            await ask(client_of(server, pause_s=0.3), 1)
        with pytest.raises(DeadlineExceeded, match="the gate to open for generation r"):
            await server.generate("r", PROMPT_IDS, SamplingParams(4), Attempt(0, 60.0, 0.2))
        await server.wake()
        with pytest.raises(DeadlineExceeded, match="generation r on server 0"):
            await server.generate("r", PROMPT_IDS, SamplingParams(150, seed=1), Attempt(0, 0.1, 60.0))
        assert (await server.usage()).failed == 1

    serve(config, tmp_path, scenario)


def test_a_server_that_leaves_hands_its_requests_over(config: RunConfig, tmp_path: Path) -> None:
    """Both kinds: those parked at its gate while it slept, and those inside; nobody waits for it to come back."""

    async def scenario(leaving: LLMServer, staying: LLMServer) -> None:
        seeds = await long_seeds(staying, 4)
        await leaving.sleep(1, True)
        pool: ServerPool[Any] = ServerPool({"leaving": handle_of(leaving)})
        client = ResumableClient(pool, 20, 20)
        parked = [ask(client, seed) for seed in seeds[:2]]
        await asyncio.sleep(0.2)
        assert (await leaving.ping()).gate.startswith("gate open, 1 holds, 2 parked")
        pool.add("staying", handle_of(staying))
        began = time.monotonic()
        await leaving.gate("reject")
        pool.remove("leaving")
        alone = [await ask(client_of(staying), seed) for seed in seeds[:2]]
        assert list(await asyncio.gather(*parked)) == alone
        assert time.monotonic() - began < 15
        # inside: the same server awake again, then taken back
        await leaving.wake()
        await leaving.gate("open")
        pool.replace({"leaving": handle_of(leaving)})
        inside = [ask(client, seed) for seed in seeds[2:]]
        await sampled(leaving, 5)
        pool.add("staying", handle_of(staying))
        await leaving.gate("reject")
        pool.remove("leaving")
        await leaving.sleep(1, True)
        found = await asyncio.gather(*inside)
        assert {generation.stop_reason for generation in found} <= {"length", "stop"}
        usage = await leaving.usage()
        assert (usage.inside, usage.aborted, usage.tokens >= 10) == (0, 2, True)
        assert (await staying.usage()).tokens_read_again == usage.tokens

    serve(config, tmp_path, scenario, count=2)


# ---- the account


def test_the_meter_counts_overlapping_requests_once() -> None:
    meter = UsageMeter("life")
    whole, cut = Generation((1, 2), (0.0, 0.0), "stop", ()), Generation((1,), (0.0,), "abort", ())
    with meter.request(None) as one:
        time.sleep(0.05)
        with meter.request(7) as two:
            time.sleep(0.05)
            two.append(cut)
        running = meter.read()
        one.append(whole)
    time.sleep(0.05)
    with pytest.raises(KeyError), meter.request(None):
        raise KeyError
    with meter.request(None) as three:
        three.append(cut)
    usage = meter.read()
    assert running.inside == 1
    assert 0.1 <= running.busy_s <= usage.busy_s < 0.15 <= usage.clock_s
    counts = (usage.inside, usage.finished, usage.aborted, usage.resumed, usage.failed)
    assert counts == (0, 1, 2, 1, 1)
    assert (usage.tokens, usage.tokens_read_again, usage.tokens_discarded) == (4, 7, 1)
    later = usage.since(running)
    assert (later.finished, later.aborted, later.tokens) == (1, 1, 3)
    assert later.clock_s == pytest.approx(usage.clock_s - running.clock_s)
    assert usage.since(None) == usage
    assert usage.since(ServerUsage("another life", 99.0)) == usage
    assert 0.5 < usage.busy_share < 1
    assert ServerUsage("empty").busy_share == 0.0


def test_busy_is_measured_against_the_wall(config: RunConfig, tmp_path: Path) -> None:
    """0.3 s idle, then requests for some time, then 0.3 s idle."""

    async def scenario(server: LLMServer) -> None:
        seeds = await long_seeds(server, 3)
        start = await server.usage()
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await asyncio.gather(*(ask(client_of(server), seed, 30) for seed in seeds))
        worked = time.monotonic() - began
        await asyncio.sleep(0.3)
        usage = (await server.usage()).since(start)
        assert usage.busy_s == pytest.approx(worked, abs=0.1)
        assert usage.clock_s == pytest.approx(worked + 0.6, abs=0.2)
        assert (usage.finished, usage.aborted, usage.failed) == (3, 0, 0)

    serve(config, tmp_path, scenario)

"""The real engine under an asynchronous mode, against torch: cut, resumed, published to while it generates, killed.

One server for the whole file, in this process; the last test kills its engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from tests.rollout.local import FakeHandle, bound_s, handle_of, part
from verl_core.config.schema import RunConfig
from verl_core.rollout.engines.staging import Staging
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.seeds import attempt_seed
from verl_core.rollout.server import LLMServer
from verl_core.weights.shm import ShmSender, weights_folder

pytestmark = pytest.mark.timeout(600)  # the first test pays for the import of vLLM

T = TypeVar("T")
TOLERANCE = 1e-3
RESPONSE = 400


@dataclass
class Bench:
    """A server, the loop it lives on, the sender that feeds it, and the torch model of each version."""

    runner: asyncio.Runner
    server: LLMServer
    sender: ShmSender
    make_policy: Callable[..., Any]
    left: list[int]
    models: dict[int, Any] = field(default_factory=dict)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 240))

    async def publish(self) -> float:
        """The next version, from another seed; returns the seconds that it took in all."""
        version = max(self.models) + 1
        self.models[version] = self.make_policy(True, version)
        manifest = self.sender.publish(self.models[version].named_parameters(), version)
        began = time.monotonic()
        assert await self.server.update_weights(manifest) == version
        return time.monotonic() - began

    async def switch_s(self) -> float:
        return (await self.server.ping()).switch_s

    def client(self, **more: Any) -> ResumableClient:
        return ResumableClient(ServerPool({"server-0": handle_of(self.server)} | more, seed=1), 60, 60)

    def errors(self, ids: list[int], generation: Generation) -> dict[int, float]:
        """Largest difference to torch, per weight version."""
        worst: dict[int, float] = {}
        at = 0
        for segment in generation.segments:
            span = slice(at, at + segment.length)
            with torch.no_grad():
                logits = self.models[segment.weight_version](torch.tensor([[*ids, *generation.token_ids]])).logits[0]
            rows = torch.log_softmax(logits.double(), -1)[len(ids) - 1 : -1]
            want = rows[torch.arange(len(generation.token_ids)), torch.tensor(generation.token_ids)][span]
            error = float((want - torch.tensor(generation.log_probs[span])).abs().max())
            worst[segment.weight_version] = max(worst.get(segment.weight_version, 0.0), error)
            at += segment.length
        assert at == len(generation.token_ids)
        return worst


@pytest.fixture(scope="module")
def bench(policy_folder: Path, make_policy: Callable[..., Any]) -> Iterator[Bench]:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(policy_folder)
    config.data.max_prompt_length, config.data.max_response_length = 64, RESPONSE
    config.actor_rollout_ref.rollout.engine_process = "inproc"
    config.actor_rollout_ref.rollout.kv_cache_bytes = 64 << 20
    config.trainer.v1.trainer_mode = "separate_async"
    folder = weights_folder(f"test-resumable-{os.getpid()}")
    sender, left = ShmSender(folder, 1 << 16), list[int]()
    with asyncio.Runner() as runner:

        async def start() -> LLMServer:
            return LLMServer(0, config, "cpu", str(folder), leave=lambda: left.append(1))

        server = runner.run(start())
        made = Bench(runner, server, sender, make_policy, left, {0: make_policy(True, 0)})
        made.run(server.ready())
        yield made
        made.run(server.shutdown())
        sender.remove()


def prompt(number: int) -> list[int]:
    return [(7 * number + 3 * j) % 250 for j in range(5 + number % 40)]


async def start(bench: Bench, seeds: range) -> list[asyncio.Task[Generation]]:
    client = bench.client()
    return [
        asyncio.create_task(client.generate(f"u{seed}_0", prompt(seed), SamplingParams(RESPONSE, seed=seed)))
        for seed in seeds
    ]


def test_a_trajectory_cut_twice_across_two_weight_updates(bench: Bench) -> None:
    """Every token's log-prob is that of the torch model of its segment's version."""

    async def play() -> list[Generation]:
        tasks = await start(bench, range(16))
        for _ in range(2):
            await asyncio.sleep(0.25)
            await bench.publish()
        return list(await asyncio.gather(*tasks))

    found = bench.run(play())
    twice = [g for g in found if len(g.segments) == 3]
    assert len(twice) >= 2
    for generation in twice:
        assert [segment.weight_version for segment in generation.segments] == [0, 1, 2]
    worst: dict[int, float] = {}
    for seed, generation in enumerate(found):
        assert len(generation.token_ids) <= RESPONSE
        assert (generation.token_ids[-1] == 258) == (generation.stop_reason == "stop")
        assert 258 not in generation.token_ids[:-1]
        for version, error in bench.errors(prompt(seed), generation).items():
            worst[version] = max(worst.get(version, 0.0), error)
    print(f"{len(twice)} of {len(found)} cut twice; largest difference to torch per version: {worst}")
    assert set(worst) == {0, 1, 2}
    assert max(worst.values()) < TOLERANCE
    # the test can tell: under the weights of another version the same tokens are far off
    swapped = twice[0].segments[0]
    bench.models[0], bench.models[1] = bench.models[1], bench.models[0]
    assert bench.errors(prompt(found.index(twice[0])), twice[0])[swapped.weight_version] > 100 * TOLERANCE
    bench.models[0], bench.models[1] = bench.models[1], bench.models[0]


def test_the_part_after_a_cut_is_what_a_lone_request_gives(bench: Bench) -> None:
    async def play() -> tuple[Generation, int, Generation]:
        ids, before = prompt(3), await bench.server.usage()
        for seed in range(900, 940):
            task = asyncio.create_task(bench.client().generate("u_0", ids, SamplingParams(RESPONSE, seed=seed)))
            await asyncio.sleep(0.15)
            await bench.server.abort()
            found = await task
            used = (await bench.server.usage()).since(before)
            if used.aborted:
                break
            before = await bench.server.usage()
        done = used.tokens_read_again
        params = SamplingParams(RESPONSE - done, seed=attempt_seed(seed, done))
        rest = await bench.server.generate("lone", [*ids, *found.token_ids[:done]], params)
        return found, done, rest

    found, done, rest = bench.run(play())
    assert 0 < done < len(found.token_ids)
    assert (found.token_ids[done:], found.stop_reason) == (rest.token_ids, rest.stop_reason)
    assert found.log_probs[done:] == pytest.approx(rest.log_probs, abs=1e-4)


def test_publication_while_generating(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receiving is made to take 0.5 s; short requests must be answered meanwhile, and standing still is short."""
    real = Staging._receive

    def slow(self: Staging, manifest: Any) -> Any:
        time.sleep(0.5)
        return real(self, manifest)

    monkeypatch.setattr(Staging, "_receive", slow)

    async def play() -> tuple[list[Generation], list[tuple[int, float, float]]]:
        client, found, stop = bench.client(), list[Generation](), asyncio.Event()

        async def session(number: int) -> None:
            turn = 0
            while not stop.is_set():
                seed = 1000 * number + turn
                found.append(await client.generate(f"u{seed}_0", prompt(number), SamplingParams(24, seed=seed)))
                turn += 1

        sessions = [asyncio.create_task(session(number)) for number in range(8)]
        await asyncio.sleep(0.2)
        measured = []
        for _ in range(3):
            answered = len(found)
            took = await bench.publish()
            measured.append((len(found) - answered, took, await bench.switch_s()))
        stop.set()
        await asyncio.gather(*sessions)
        return found, measured

    first, before = max(bench.models), bench.run(bench.server.usage())
    found, measured = bench.run(play())
    used = bench.run(bench.server.usage()).since(before)
    for answered, took, switch_s in measured:
        print(
            f"publication: {took:.2f} s, of these generation stood still {switch_s:.3f} s; {answered} answers during it"
        )
        assert answered >= 4
        assert switch_s < took / 2
    print(f"busy {used.busy_share:.2f}, {used.tokens / used.clock_s:.0f} tokens/s, {used.aborted} cut")
    assert used.finished == len(found)
    assert 3 <= used.resumed <= used.aborted  # one that was cut before its first token brings none along
    assert used.failed == used.tokens_discarded == 0
    assert used.busy_share > 0.8
    versions = {segment.weight_version for generation in found for segment in generation.segments}
    assert versions == {first, first + 1, first + 2, first + 3}
    crossing = [g for g in found if len(g.segments) > 1]
    assert crossing
    ids = {tuple(prompt(number)): number for number in range(8)}
    for generation in crossing:
        errors = [max(bench.errors(list(each), generation).values()) for each in ids]
        assert min(errors) < TOLERANCE  # of the prompt that it answers


def test_a_killed_engine_loses_no_kept_token(bench: Bench) -> None:
    """Last: cut once, then the engine breaks in the second attempt; another server goes on with what was kept."""
    other = FakeHandle(lambda number, call: _answer(call))

    async def _answer(call: Any) -> Generation:
        return part(2, "length", 99, first=5)

    async def play() -> tuple[Generation, float]:
        client = bench.client()
        engine: Any = bench.server._engine
        await asyncio.wrap_future(engine._steps.submit(_slow_down))  # or a fast machine is done before it breaks
        task = asyncio.create_task(client.generate("u_0", prompt(4), SamplingParams(RESPONSE, seed=4)))
        before, kept, pause_s = await bench.server.usage(), 0, 0.04
        while not kept and not task.done():  # how soon the first token comes is the machine's affair
            await asyncio.sleep(pause_s)
            await bench.server.abort()
            kept, pause_s = (await bench.server.usage()).since(before).tokens, 1.5 * pause_s
        assert 0 < kept < RESPONSE
        client._pool.add("server-1", other)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert not task.done()
        engine._steps.submit(_break)
        found = await task
        assert len(other.calls) == 1
        assert len(other.calls[0][1]) == len(prompt(4)) + kept
        assert len(found.token_ids) == kept + 2
        while not bench.left:
            await asyncio.sleep(0.05)
        return found, time.monotonic() - began

    found, seconds = bench.run(play())
    print(f"engine killed: resumed elsewhere and the server gone after {seconds:.2f} s")
    assert found.segments[-1].weight_version == 99
    assert seconds < bound_s("vLLM engine breaks inside its server")


def _slow_down(engine: Any) -> None:
    """Every step takes 20 ms more."""
    real = engine.step

    def step() -> Any:
        time.sleep(0.02)
        return real()

    engine.step = step


def _break(engine: Any) -> None:
    """The next step raises out of vLLM itself."""
    engine.engine_core = None

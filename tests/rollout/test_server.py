"""LLMServer around the scripted engine: who gets in, who gets out, and what happens when the engine dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded, EngineDead, RolloutError, WeightError
from verl_core.rollout.gate import Gate, GateClosed
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.server import LLMServer
from verl_core.weights.interface import WeightManifest
from verl_core.weights.manifest import write_current
from verl_core.weights.shm import ShmSender

T = TypeVar("T")
PROMPT_IDS = [10, 20, 30]


@pytest.fixture
def config(policy_folder: Path) -> RunConfig:
    made = RunConfig()
    made.actor_rollout_ref.model.path = str(policy_folder)
    made.actor_rollout_ref.rollout.name = "scripted"
    made.actor_rollout_ref.rollout.scripted_delay_s = 0.01
    made.actor_rollout_ref.rollout.request_timeout_s = 20.0
    made.data.max_prompt_length, made.data.max_response_length = 64, 200
    return made


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[ShmSender]:
    made = ShmSender(tmp_path / "weights", 1 << 16)
    yield made
    made.close()


def serve(config: RunConfig, folder: Path, scenario: Callable[[LLMServer], Coroutine[Any, Any, T]], **more: Any) -> T:
    """Run the scenario against a server of its own."""

    async def play() -> T:
        server = LLMServer(0, config, more.pop("device", "cpu"), str(folder), **more)
        try:
            return await scenario(server)
        finally:
            await server.shutdown()

    return asyncio.run(asyncio.wait_for(play(), 60))


def ask(server: LLMServer, tokens: int = 4, name: str = "r", seed: int = 1) -> asyncio.Task[Generation]:
    return asyncio.create_task(server.generate(name, PROMPT_IDS, SamplingParams(tokens, seed=seed)))


async def still_waiting(*tasks: asyncio.Task[Any], seconds: float = 0.15) -> bool:
    done, _ = await asyncio.wait(tasks, timeout=seconds)
    return not done


# ---- the gate


def test_park_holds_requests_and_reject_sends_them_away(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.ready()
        await server.gate("park")
        first = ask(server)
        assert await still_waiting(first)
        assert (await server.ping()).gate.startswith("gate park, 0 holds, 1 parked, 0 inside")
        await server.gate("open")
        assert len((await first).token_ids) == 4
        await server.gate("park")
        second = ask(server)
        assert await still_waiting(second)
        await server.gate("reject")  # those that were parked are sent away, too
        for task in (second, ask(server)):
            with pytest.raises(GateClosed):
                await task
        await server.gate("open")
        assert await ask(server) == await first

    serve(config, tmp_path, scenario)


def test_a_closed_gate_lets_requests_inside_finish(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.ready()
        inside = ask(server, tokens=30)
        await asyncio.sleep(0.05)
        await server.gate("reject")
        assert (await inside).stop_reason in ("length", "stop")

    serve(config, tmp_path, scenario)


def test_the_gate_counts_until_the_answer() -> None:
    async def scenario() -> None:
        gate, release = Gate(), asyncio.Event()

        async def visit(name: str) -> None:
            async with gate.pass_through(name, Deadline("visit", 5)):
                await release.wait()

        visits = [asyncio.create_task(visit("a")), asyncio.create_task(visit("a")), asyncio.create_task(visit("b"))]
        await asyncio.sleep(0.01)
        assert gate.inside == {"a": 2, "b": 1}
        visits[2].cancel()
        await asyncio.sleep(0.01)
        assert gate.inside == {"a": 2}
        with pytest.raises(DeadlineExceeded, match="empty"):
            await gate.emptied(Deadline("the gate to be empty", 0.05))
        release.set()
        await gate.emptied(Deadline("the gate to be empty", 5))
        assert gate.inside == {}
        with gate.held():
            assert gate.closed
            with gate.held():
                assert gate.closed
            assert gate.closed
        assert not gate.closed

    asyncio.run(scenario())


# ---- abort, sleep, wake


def test_abort_is_a_barrier_and_leaves_the_gate_as_it_was(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.ready()
        tasks = [ask(server, 200, f"r{i}", seed=i) for i in range(8)]
        await asyncio.sleep(0.1)
        late = [ask(server, 200, f"late{i}", seed=50 + i) for i in range(4)]  # not inside yet when abort is called
        count = await server.abort()
        gate = (await server.ping()).gate
        assert gate.startswith("gate open, 0 holds")
        assert "r0" not in gate
        results = await asyncio.gather(*tasks)
        assert count >= sum(r.stop_reason == "abort" for r in results) >= 1
        assert any(r.token_ids for r in results if r.stop_reason == "abort")
        assert await server.abort() >= 0
        await asyncio.gather(*late)

    serve(config, tmp_path, scenario)


def test_a_request_aborted_while_the_gate_parks_waits_for_its_reopening(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.ready()
        first = ask(server, 200)
        await asyncio.sleep(0.1)
        await server.gate("park")
        await server.abort()
        assert (await first).stop_reason == "abort"
        again = ask(server)
        assert await still_waiting(again)
        await server.gate("open")
        assert (await again).token_ids

    serve(config, tmp_path, scenario)


def test_sleep_waits_for_those_inside_and_wake_lets_the_others_in(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.ready()
        inside = ask(server, 30)
        await asyncio.sleep(0.05)
        falling = asyncio.create_task(server.sleep())
        await asyncio.sleep(0.02)
        outside = ask(server, 4, "outside")
        await falling
        assert inside.done()
        assert (await server.ping()).asleep
        await server.sleep(2)  # sleeping twice is sleeping once
        assert await still_waiting(outside)
        await server.wake()
        await server.wake()
        assert len((await outside).token_ids) == 4
        assert not (await server.ping()).asleep

    serve(config, tmp_path, scenario)


def test_a_gate_closed_by_hand_stays_closed_after_wake(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        await server.gate("park")
        await server.sleep()
        await server.wake()
        task = ask(server)
        assert await still_waiting(task)
        task.cancel()

    serve(config, tmp_path, scenario)


def test_a_request_that_takes_too_long_cannot_keep_the_server_awake(config: RunConfig, tmp_path: Path) -> None:
    """Every request inside is bounded by the same time as the wait for it, and began earlier."""
    config.actor_rollout_ref.rollout.request_timeout_s = 0.5

    async def scenario(server: LLMServer) -> None:
        await server.ready()
        slow = ask(server, 200, "slow")
        await asyncio.sleep(0.05)
        await server.sleep()
        with pytest.raises(DeadlineExceeded, match=r"generation slow on server 0.*1 holds.*1 inside \(slow\)"):
            await slow
        assert (await server.ping()).asleep
        await server.wake()
        assert (await ask(server)).token_ids

    serve(config, tmp_path, scenario)


def test_a_sleep_that_fails_opens_the_gate_again(config: RunConfig, tmp_path: Path) -> None:
    class Sleepless(ScriptedEngine):
        async def sleep(self, level: int = 1) -> None:
            raise RolloutError("cannot sleep")

    async def scenario(server: LLMServer) -> None:
        with pytest.raises(RolloutError, match="cannot sleep"):
            await server.sleep()
        assert not (await server.ping()).asleep
        assert (await ask(server)).token_ids

    serve(config, tmp_path, scenario, engine=Sleepless(config, config.actor_rollout_ref.model.path))


def test_parked_for_too_long_is_an_error_with_a_dump(config: RunConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.rollout.request_timeout_s = 0.2

    async def scenario(server: LLMServer) -> None:
        await server.ready()
        await server.gate("park")
        with pytest.raises(DeadlineExceeded, match=r"generation r on server 0.*gate park"):
            await ask(server)

    serve(config, tmp_path, scenario)


# ---- weights


def test_updates_are_served_and_repeating_one_is_nothing(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    async def scenario(server: LLMServer) -> None:
        assert await server.version() == 0
        before = await ask(server)
        manifest = sender.publish(make_policy(True, 1).named_parameters(), 1)
        assert await server.update_weights(manifest) == 1
        after = await ask(server)
        assert [s.weight_version for s in after.segments] == [1]
        assert after != before
        assert await server.update_weights(manifest) == 1
        # the same version with other content is another publication
        other = sender.publish(make_policy(True, 2).named_parameters(), 1)
        await server.update_weights(other)
        assert await ask(server) != after
        await server.sleep()
        await server.update_weights(sender.publish(make_policy(True, 3).named_parameters(), 2))
        await server.wake()
        assert await server.version() == 2

    serve(config, tmp_path, scenario)


def test_a_server_starts_with_what_was_published_last(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    sender.publish(make_policy(True, 1).named_parameters(), 6)
    manifest = sender.publish(make_policy(True, 2).named_parameters(), 7)

    async def scenario(server: LLMServer) -> Generation:
        assert await server.version() == 7
        await server.update_weights(manifest)
        return await ask(server)

    restarted = serve(config, tmp_path / "weights", scenario)
    assert [s.weight_version for s in restarted.segments] == [7]

    async def fresh(server: LLMServer) -> Generation:
        assert await server.version() == 0
        await server.update_weights(manifest)
        return await ask(server)

    assert serve(config, tmp_path / "nothing", fresh) == restarted


def test_broken_published_weights_are_an_error_at_start(
    config: RunConfig, tmp_path: Path, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    manifest = sender.publish(make_policy(True, 1).named_parameters(), 1)
    (Path(manifest.location) / "0000.bucket").unlink()

    async def scenario(server: LLMServer) -> None:
        with pytest.raises(WeightError, match="does not exist"):
            await server.ready()
        with pytest.raises(WeightError):
            await ask(server)
        state = await server.ping()
        assert state.stage == "failed"
        assert "does not exist" in state.error

    serve(config, tmp_path / "weights", scenario)


def test_weights_on_devices_close_a_restarted_server_until_the_next_publication(
    config: RunConfig, tmp_path: Path
) -> None:
    write_current(tmp_path, WeightManifest(3, "nccl", "host:1", (), ()))

    async def scenario(server: LLMServer) -> None:
        await server.ready()
        with pytest.raises(GateClosed):
            await ask(server)
        with pytest.raises(WeightError, match="shared memory only"):
            await server.transfer("start_weight_update")

    serve(config, tmp_path, scenario)


# ---- death


class DyingEngine(ScriptedEngine):
    """Dies in the middle of the request named `poison`."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """As the scripted engine, or the end."""
        if request_id == "poison":
            await asyncio.sleep(0.05)
            raise EngineDead("the engine's process is gone")
        return await super().generate(request_id, prompt_ids, params)


def test_a_server_whose_engine_died_says_so_and_leaves(config: RunConfig, tmp_path: Path) -> None:
    left: list[int] = []

    async def scenario(server: LLMServer) -> None:
        await server.ready()
        with pytest.raises(EngineDead, match="process is gone"):
            await ask(server, name="poison")
        assert (await server.ping()).stage == "dead"
        for work in (ask(server), server.version(), server.health(), server.abort()):
            with pytest.raises(EngineDead):
                await work
        await asyncio.sleep(0.8)
        assert left == [1]

    engine = DyingEngine(config, config.actor_rollout_ref.model.path)
    serve(config, tmp_path, scenario, engine=engine, leave=lambda: left.append(1))


def test_a_bad_model_folder_is_reported_by_every_call(config: RunConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.model.path = str(tmp_path)

    async def scenario(server: LLMServer) -> None:
        for work in (server.ready(), server.version(), ask(server)):
            with pytest.raises(Exception, match=r"\w"):
                await work
        assert (await server.ping()).stage == "failed"
        assert (await server.ping()).pid == os.getpid()

    serve(config, tmp_path, scenario)


def test_a_request_that_can_never_succeed_kills_nobody(config: RunConfig, tmp_path: Path) -> None:
    async def scenario(server: LLMServer) -> None:
        with pytest.raises(RolloutError):
            await server.generate("r", [], SamplingParams(4))
        assert (await server.ping()).stage == "ready"
        assert (await ask(server)).token_ids

    serve(config, tmp_path, scenario)

"""What a server serves after it was started again, and who may take it over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.test_server import ask, serve
from verl_core.config.schema import RunConfig
from verl_core.errors import WeightError
from verl_core.rollout.gate import GateClosed
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.server import LLMServer
from verl_core.weights.interface import WeightManifest
from verl_core.weights.manifest import read_current
from verl_core.weights.shm import ShmSender


@pytest.fixture
def config(policy_folder: Path) -> RunConfig:
    made = RunConfig()
    made.actor_rollout_ref.model.path = str(policy_folder)
    made.actor_rollout_ref.rollout.name = "scripted"
    made.actor_rollout_ref.rollout.scripted_delay_s = 0.01
    made.actor_rollout_ref.rollout.request_timeout_s = 20.0
    made.data.max_prompt_length, made.data.max_response_length = 64, 200
    return made


class DeviceEngine(ScriptedEngine):
    """Stands in for an engine on a GPU: its weights come by `transfer`, and there is nothing to see of them."""

    async def transfer(self, method: str, *arguments: Any) -> None:
        """Takes the version."""
        if method == "finish_weight_update":
            self.version = arguments[0]


def on_devices(config: RunConfig, folder: Path, scenario: Callable[[LLMServer], Any], restarted: bool) -> Any:
    config.actor_rollout_ref.rollout.update_weights_backend = "ipc"
    engine = DeviceEngine(config, config.actor_rollout_ref.model.path)
    return serve(config, folder, scenario, device="cuda", engine=engine, restarted=restarted)


def test_weights_that_came_between_devices_are_missed_after_a_restart(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "weights"

    async def never_published(server: LLMServer) -> None:
        assert await server.version() == 0
        assert (await ask(server)).token_ids

    async def first(server: LLMServer) -> None:
        await never_published(server)
        await server.transfer("start_weight_update")
        await server.transfer("finish_weight_update", 3)
        assert await server.version() == 3
        assert (await ask(server)).token_ids

    async def second(server: LLMServer) -> None:
        assert await server.version() == -1  # so that the trainer publishes again
        with pytest.raises(GateClosed):
            await ask(server)
        await server.transfer("finish_weight_update", 3)
        assert await server.update_weights(WeightManifest(3, "ipc", "cuda-ipc", (), ())) == 3
        assert await server.version() == 3
        assert (await ask(server)).token_ids

    on_devices(config, folder, never_published, restarted=False)
    on_devices(config, folder, never_published, restarted=True)  # version 0 is right before any publication
    on_devices(config, folder, first, restarted=True)
    mark = read_current(folder)
    assert mark is not None
    assert (mark.version, mark.backend) == (3, "ipc")
    on_devices(config, folder, second, restarted=True)


def test_a_server_that_comes_back_on_another_host_waits_for_the_next_publication(
    config: RunConfig, tmp_path: Path, make_policy: Callable[..., Any]
) -> None:
    folder = tmp_path / "weights"

    async def scenario(server: LLMServer) -> None:
        assert await server.version() == -1
        with pytest.raises(GateClosed):
            await ask(server)
        elsewhere = WeightManifest(1, "shm", str(tmp_path / "elsewhere"), (), (64,), ("0",))
        with pytest.raises(WeightError):
            await server.update_weights(elsewhere)
        assert await server.version() == -1
        sender = ShmSender(folder, 1 << 16)
        await server.update_weights(sender.publish(make_policy(True, 1).named_parameters(), 1))
        sender.close()
        assert await server.version() == 1
        assert (await ask(server)).token_ids

    serve(config, folder, scenario, restarted=True)


def test_an_earlier_run_is_forgotten_by_the_first_start_only(
    config: RunConfig, tmp_path: Path, make_policy: Callable[..., Any]
) -> None:
    folder = tmp_path / "weights"
    sender = ShmSender(folder, 1 << 16)

    async def version(server: LLMServer) -> int:
        return await server.version()

    sender.publish(make_policy(True, 1).named_parameters(), 7)
    assert serve(config, folder, version, forget=True, restarted=False) == 0
    sender.publish(make_policy(True, 1).named_parameters(), 8)
    assert serve(config, folder, version, forget=True, restarted=True) == 8
    sender.close()


def test_nobody_attaches_to_a_server_that_did_not_start(config: RunConfig, tmp_path: Path) -> None:
    async def healthy(server: LLMServer) -> str:
        await server.ready()
        return await server.identity()

    async def failed(server: LLMServer) -> str:
        with pytest.raises(Exception, match=r"\w"):
            await server.ready()
        return await server.identity()

    assert serve(config, tmp_path / "a", healthy, identity="mine") == "mine"
    config.actor_rollout_ref.model.path = str(tmp_path)
    assert serve(config, tmp_path / "b", failed, identity="mine") == ""


def test_sleep_cuts_leftovers_off_when_told_to(config: RunConfig, tmp_path: Path) -> None:
    """They are allowed more than a minute of work; nobody waits for it."""
    config.actor_rollout_ref.rollout.scripted_delay_s = 0.4

    async def scenario(server: LLMServer) -> None:
        await server.ready()
        leftovers = [ask(server, 200, f"r{index}", seed=index) for index in range(3)]
        await asyncio.sleep(0.2)
        await asyncio.wait_for(server.sleep(1, True), 10)
        assert (await server.ping()).asleep
        assert {(await task).stop_reason for task in leftovers} == {"abort"}
        await server.wake()

    serve(config, tmp_path, scenario)

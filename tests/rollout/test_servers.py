"""Servers as Ray actors: starting, attaching, calling all of them, and coming back after a kill."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.exceptions import RayActorError

from verl_core.config.schema import RunConfig
from verl_core.errors import DeadlineExceeded, RolloutError, VerlError, WeightError
from verl_core.rollout.interface import SamplingParams
from verl_core.rollout.servers import Servers
from verl_core.weights.manifest import read_current
from verl_core.weights.shm import ShmSender, weights_folder

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]
PROMPT_IDS = [10, 20, 30]


def config_for(folder: Path, name: str) -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(folder)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.kv_cache_bytes = name, 64 << 20  # type: ignore[assignment]
    config.data.max_prompt_length, config.data.max_response_length = 64, 200
    config.trainer.init_timeout_s, rollout.request_timeout_s = 240.0, 120.0
    return config


@pytest.fixture
def sender(request: pytest.FixtureRequest) -> Iterator[ShmSender]:
    made = ShmSender(folder_of(request.node.name), 1 << 16)
    yield made
    made.remove()


def folder_of(name: str) -> Path:
    return weights_folder(f"test-{os.getpid()}-{name}")


def get(reference: Any, timeout_s: float = 120) -> Any:
    import ray

    return ray.get(reference, timeout=timeout_s)


def error_of(reference: Any) -> Exception | None:
    try:
        get(reference)
    except RayActorError as error:
        return error
    return None


def test_two_servers_from_start_to_end(
    policy_folder: Path, request: pytest.FixtureRequest, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    config, folder = config_for(policy_folder, "scripted"), folder_of(request.node.name)
    config.actor_rollout_ref.rollout.scripted_delay_s = 0.01
    config.actor_rollout_ref.rollout.num_servers = 2
    sender.publish(make_policy(True, 9).named_parameters(), 99)  # of an earlier run of this name
    asked: list[int] = []

    def options(index: int) -> dict[str, Any]:
        asked.append(index)
        return {"num_cpus": 0, "runtime_env": {"env_vars": {"MARK": str(index)}}}

    servers = Servers.attach_or_launch(config, "servers-a", folder, "cpu", options)
    try:
        assert list(servers.handles) == ["server-0", "server-1"]
        assert asked == [0, 1]
        assert servers.version() == 0  # not 99
        assert read_current(folder) is None
        pids = {state.pid for state in servers.states().values() if not isinstance(state, str)}
        assert len(pids) == 2
        # all of them change, all of them answer alike
        servers.update_weights(sender.publish(make_policy(True, 1).named_parameters(), 1))
        assert servers.version() == 1
        params = SamplingParams(6, seed=5)
        one, two = (get(h.generate.remote("r", PROMPT_IDS, params)) for h in servers.handles.values())
        assert one == two
        # someone else finds the same servers, with the weights they have
        again = Servers.attach_or_launch(config, "servers-a", folder, "cpu")
        assert again.version() == 1
        assert {s.pid for s in again.states().values() if not isinstance(s, str)} == pids
        # commands reach all of them
        running = [
            h.generate.remote(f"r{i}", PROMPT_IDS, SamplingParams(200)) for i, h in enumerate(servers.handles.values())
        ]
        time.sleep(0.3)
        assert servers.abort() == 2
        assert {get(reference).stop_reason for reference in running} == {"abort"}
        servers.sleep()
        servers.sleep()
        assert "asleep=True" in servers.state()
        servers.wake()
        servers.gate("reject")
        assert servers.state().count("gate reject") == 2
        servers.gate("open")
        servers.health()
        bad = sender.publish(list(make_policy(True, 2).named_parameters())[1:], 2)
        with pytest.raises(WeightError):
            servers.update_weights(bad)
        assert servers.version() == 1
        # an update begun on sleeping servers: requests sent meanwhile wait, and meet the new weights
        servers.sleep()
        servers.begin_update(sender.publish(make_policy(True, 3).named_parameters(), 3))
        assert servers.under_way == 3
        early = [h.generate.remote("e", PROMPT_IDS, SamplingParams(4)) for h in servers.handles.values()]
        servers.settle()
        assert servers.under_way is None
        assert "asleep=True" not in servers.state()
        assert {segment.weight_version for reference in early for segment in get(reference).segments} == {3}
        # one that is refused wakes nobody, and whoever waits is told
        servers.sleep()
        servers.begin_update(sender.publish(list(make_policy(True, 4).named_parameters())[1:], 4))
        with pytest.raises(WeightError):
            servers.settle()
        assert servers.state().count("asleep=True") == 2
        servers.wake()
        assert servers.version() == 3
        # another configuration does not get the old servers
        config.actor_rollout_ref.rollout.seed += 1
        changed = Servers.attach_or_launch(config, "servers-a", folder, "cpu")
        assert not pids & {s.pid for s in changed.states().values() if not isinstance(s, str)}
    finally:
        servers.shutdown()
    with pytest.raises(VerlError):
        servers.health()
    assert "server-0: ActorDiedError" in servers.state()


def test_a_server_that_cannot_start_says_why(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config = config_for(tmp_path / "no-model", "scripted")
    folder = folder_of(request.node.name)
    try:
        with pytest.raises(Exception, match="no-model"):
            Servers.attach_or_launch(config, "servers-b", folder, "cpu")
        config.trainer.init_timeout_s = 0.5
        config.actor_rollout_ref.rollout.seed += 1
        with pytest.raises(DeadlineExceeded, match=r"ready of 1 servers.*server-0: "):
            Servers.attach_or_launch(config, "servers-b", folder, "cpu")
    finally:
        Servers(config, "servers-b", {"server-0": None}).shutdown()


@pytest.mark.slow
def test_a_killed_vllm_server_comes_back_with_the_last_published_weights(
    policy_folder: Path, request: pytest.FixtureRequest, sender: ShmSender, make_policy: Callable[..., Any]
) -> None:
    """The real engine, killed while it generates. Ray starts it again; it serves the newest weights at once."""
    config, folder = config_for(policy_folder, "vllm"), folder_of(request.node.name)
    servers = Servers.attach_or_launch(config, "servers-c", folder, "cpu")
    try:
        handle = servers.handles["server-0"]
        model = make_policy(True, 5)
        servers.update_weights(sender.publish(make_policy(True, 4).named_parameters(), 1))
        servers.update_weights(sender.publish(model.named_parameters(), 2))
        began = time.monotonic()
        prompts = [[1 + (7 * i + j) % 200 for j in range(12)] for i in range(256)]
        get([handle.generate.remote(f"w{i}", ids, SamplingParams(4, seed=i)) for i, ids in enumerate(prompts)])
        print(f"256 requests of 4 tokens through Ray: {256 / (time.monotonic() - began):.0f} requests/s")
        params = SamplingParams(8, seed=3)
        before = get(handle.generate.remote("r", PROMPT_IDS, params))

        victim = get(handle.ping.remote())
        running = [handle.generate.remote(f"r{i}", PROMPT_IDS, SamplingParams(200, seed=i)) for i in range(8)]
        time.sleep(0.1)
        os.kill(victim.pid, signal.SIGKILL)
        cut_off = [error for error in map(error_of, running) if error is not None]
        assert cut_off  # the others met an end token before the kill
        assert all(isinstance(error, RayActorError) for error in cut_off)
        assert servers.version() == 2  # waits for the restart
        assert get(handle.ping.remote()).pid != victim.pid
        after = get(handle.generate.remote("r", PROMPT_IDS, params))
        assert after == before
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT_IDS, *after.token_ids]])).logits[0]
        want = torch.log_softmax(logits, -1)[len(PROMPT_IDS) - 1 : -1][torch.arange(8), torch.tensor(after.token_ids)]
        assert np.abs(want.numpy() - np.array(after.log_probs)).max() < 1e-4
        with pytest.raises(RolloutError, match="the server holds 264"):
            get(handle.generate.remote("r", [1] * 64, SamplingParams(201)))
    finally:
        servers.shutdown()

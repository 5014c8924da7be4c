"""Agent workers as real actors: real servers, scripted engine, real TransferQueue, the legacy pump, and deaths."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.rollout.agent_cases import config_of, prompt_of, tiny_model
from tests.rollout.local import bound_s
from verl_core.config.schema import BufferConfig, RunConfig
from verl_core.errors import ConfigError, RolloutError
from verl_core.rollout import named_actor
from verl_core.rollout.agent_manager import AgentLoopManagerTQ
from verl_core.rollout.legacy_manager import AgentLoopManager
from verl_core.rollout.servers import Servers
from verl_core.trajectory import Prompt, Trajectory
from verl_core.transfer.group import GroupTag
from verl_core.transfer.host import StoreHost
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.tq_store import TransferQueueStore

SPACE = "verl-test-agents"
ODD = "tests.rollout.agent_cases.OddAgent"


def run_config(folder: Path, workers: int = 2) -> RunConfig:
    config = config_of(num_servers=1, request_timeout_s=20.0)
    config.actor_rollout_ref.model.path = str(folder)
    config.actor_rollout_ref.rollout.agent.default_agent_loop = ODD
    config.actor_rollout_ref.rollout.agent.num_workers = workers
    config.trainer.init_timeout_s = 120.0
    config.trainer.device = "cpu"
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def servers(ray_cluster: None, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    weights = tmp_path_factory.mktemp("weights")
    started = Servers.attach_or_launch(run_config(folder), SPACE, weights, device="cpu")
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def host(ray_cluster: None) -> Iterator[StoreHost]:
    started = StoreHost.attach_or_launch(BufferConfig(), timeout_s=120, namespace=SPACE)
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def queue(host: StoreHost) -> Iterator[TransferQueueStore]:
    joined = TransferQueueStore.join(host.endpoint)
    yield joined
    joined.close()


@pytest.fixture(scope="module")
def manager(folder: Path, servers: Servers, host: StoreHost) -> Iterator[AgentLoopManagerTQ]:
    started = AgentLoopManagerTQ.attach_or_launch(run_config(folder), SPACE, host.endpoint, servers.handles)
    yield started
    started.shutdown()


def settled(store: TrajectoryStore, prompts: Sequence[Prompt], seconds: float = 60.0) -> dict[str, GroupTag]:
    """Tags of the prompts, all terminal."""
    uids, limit = [prompt.uid for prompt in prompts], time.monotonic() + seconds
    while time.monotonic() < limit:
        store.wait(0.2)
        tags = store.read_tags(uids)
        if len(tags) == len(uids) and all(tag.status.terminal for tag in tags.values()):
            return tags
    raise AssertionError(f"not settled after {seconds} s: {store.read_tags(uids)}")


def content(rows: Sequence[Trajectory]) -> list[tuple[object, ...]]:
    """Everything that must not depend on who ran the group, in canonical order."""
    ordered = sorted(rows, key=lambda row: row.order)
    return [(r.key, r.response_ids.tolist(), r.rollout_log_probs.tolist(), r.segments, r.stop_reason) for r in ordered]


def test_groups_travel_from_the_manager_through_workers_and_servers_into_the_store(
    manager: AgentLoopManagerTQ, queue: TransferQueueStore
) -> None:
    prompts = [prompt_of(number, n=4) for number in range(100, 108)]
    start = time.monotonic()
    manager.dispatch(prompts)
    assert time.monotonic() - start < 5  # accepted, not done
    tags = settled(queue, prompts)
    assert {tag.status.value for tag in tags.values()} == {"finished"}
    assert {tag.owner for tag in tags.values()} == {"agent-0", "agent-1"}
    rows = queue.fetch([tags[prompt.uid].manifest for prompt in prompts])
    assert [row.key for row in rows] == [f"{prompt.uid}_{session}_0" for prompt in prompts for session in range(4)]
    assert len({tuple(row.response_ids.tolist()) for row in rows}) > 20  # siblings are not duplicates
    health = manager.health()
    assert sum(one.finished for one in health.values()) == 8  # type: ignore[union-attr]
    assert sum(one.troubles for one in health.values()) == 0  # type: ignore[union-attr]


def test_a_bad_session_costs_its_group_only(manager: AgentLoopManagerTQ, queue: TransferQueueStore) -> None:
    bad, good = prompt_of(120, n=4, **{"1": "raise"}), prompt_of(121, n=4)
    manager.dispatch([bad, good])
    tags = settled(queue, [bad, good])
    assert (tags[bad.uid].status.value, tags[good.uid].status.value) == ("failure", "finished")
    assert "session 1: ValueError: user code is broken" in tags[bad.uid].manifest.errors[0]
    assert len(queue.fetch([tags[bad.uid].manifest])) == 3


def test_an_unknown_agent_loop_fails_before_any_actor_starts(folder: Path, servers: Servers, host: StoreHost) -> None:
    config = run_config(folder)
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "nobody"
    with pytest.raises(ConfigError, match="nobody"):
        AgentLoopManagerTQ.attach_or_launch(config, "verl-test-nobody", host.endpoint, servers.handles)


def test_a_killed_worker_comes_back_and_takes_dispatches(
    manager: AgentLoopManagerTQ, queue: TransferQueueStore
) -> None:
    """What ran in it is the buffer's to re-issue (its lease runs out); here: the worker lives again, knows the servers
    and publishes, within the bound of docs/errors.md."""
    import ray

    actor = manager._workers.actors["agent-0"]
    lost = prompt_of(130, n=2, **{"0": "hang"})
    manager._workers._turn = 0  # agent-0 gets the next one
    manager.dispatch([lost])
    deadline = time.monotonic() + 30
    while lost.uid not in queue.read_tags([lost.uid]):  # it runs: killed before, it would have left no tag
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ray.kill(actor, no_restart=False)
    began, limit = time.monotonic(), bound_s("agent worker killed")
    while isinstance(health := manager.health()["agent-0"], str) or health.started:  # a new process has started none
        assert time.monotonic() - began < limit
        time.sleep(0.2)
    prompts = [prompt_of(number, n=2) for number in range(131, 137)]
    manager.dispatch(prompts)
    tags = settled(queue, prompts, seconds=limit - (time.monotonic() - began))
    print(f"worker killed: {time.monotonic() - began:.1f} s until the next groups of both workers are stored")
    assert {(tag.status.value, tag.owner) for tag in tags.values()} == {
        ("finished", "agent-0"),
        ("finished", "agent-1"),
    }
    assert not queue.read_tags([lost.uid])[lost.uid].status.terminal  # nobody says that it is over


@pytest.fixture
def legacy(folder: Path, servers: Servers) -> Iterator[Callable[..., AgentLoopManager]]:
    started: list[AgentLoopManager] = []

    def launch(store: MemoryStore, workers: int = 1) -> AgentLoopManager:
        config = run_config(folder, workers)
        started.append(AgentLoopManager.launch(config, f"verl-test-legacy-{os.getpid()}", servers.handles, store))
        return started[-1]

    yield launch
    for one in started:
        one.shutdown()


def test_the_legacy_path_gives_the_same_rows(
    manager: AgentLoopManagerTQ, queue: TransferQueueStore, legacy: Callable[..., AgentLoopManager]
) -> None:
    """One worker or two, through Ray or through TransferQueue: the same bits."""
    prompts = [prompt_of(number, n=4) for number in range(140, 148)]
    manager.dispatch(prompts)
    through_queue = settled(queue, prompts)
    store = MemoryStore()
    legacy(store).dispatch(prompts)
    through_ray = settled(store, prompts)
    old_rows = store.fetch([tag.manifest for tag in through_ray.values()])
    assert content(old_rows) == content(queue.fetch([tag.manifest for tag in through_queue.values()]))


def test_a_dead_worker_fails_its_groups_at_once_and_restarts_until_it_is_gone_for_good(
    legacy: Callable[..., AgentLoopManager],
) -> None:
    import ray

    store = MemoryStore()
    manager = legacy(store)
    actor = manager._workers.actors["agent-0"]
    first, second, third = (prompt_of(number, n=2, **{"0": "hang"}) for number in (150, 151, 152))
    sound = prompt_of(153, n=2)
    manager.dispatch([first])
    ray.kill(actor, no_restart=False)
    tag = settled(store, [first], seconds=30)[first.uid]
    assert tag.status.value == "failure"
    assert "agent-0: its agent worker died" in tag.manifest.errors[0]

    manager.dispatch([sound, second])  # waits for Ray to restart the worker, which must learn of the servers again
    assert settled(store, [sound])[sound.uid].status.value == "finished"

    ray.kill(actor)
    assert settled(store, [second], seconds=30)[second.uid].status.value == "failure"
    with pytest.raises(RolloutError, match=r"no agent worker is alive|no longer collected"):
        manager.dispatch([third])


def test_prompts_of_a_dead_worker_go_to_a_living_one(legacy: Callable[..., AgentLoopManager]) -> None:
    import ray

    store = MemoryStore()
    manager = legacy(store, workers=2)
    ray.kill(manager._workers.actors["agent-1"])
    prompts = [prompt_of(number, n=2) for number in range(170, 176)]
    manager.dispatch(prompts)
    tags = settled(store, prompts)
    assert {(tag.status.value, tag.owner) for tag in tags.values()} == {("finished", "agent-0")}


def test_reset_forgets_what_runs(legacy: Callable[..., AgentLoopManager]) -> None:
    store = MemoryStore()
    manager = legacy(store)
    old = prompt_of(180, n=2, **{"0": "slow"})
    manager.dispatch([old])
    manager.reset()
    store.reset()
    time.sleep(0.6)
    assert store.tags() == {}
    manager.dispatch([prompt_of(180, n=2)])
    assert settled(store, [old])[old.uid].status.value == "finished"


def test_another_driver_attaches_and_another_configuration_does_not(
    manager: AgentLoopManagerTQ, folder: Path, servers: Servers, host: StoreHost, queue: TransferQueueStore
) -> None:
    """The last test of this module: it replaces the shared workers."""
    again = AgentLoopManagerTQ.attach_or_launch(run_config(folder), SPACE, host.endpoint, servers.handles)
    assert again.attached == 2
    other = run_config(folder, workers=1)
    other.data.max_response_length = 8
    replaced = AgentLoopManagerTQ.attach_or_launch(other, SPACE, host.endpoint, servers.handles)
    assert replaced.attached == 0
    assert named_actor.find("agent-1", SPACE) is None
    prompt = prompt_of(130, n=2)
    replaced.dispatch([prompt])
    tag = settled(queue, [prompt])[prompt.uid]
    assert max(len(row.response_ids) for row in queue.fetch([tag.manifest])) <= 8

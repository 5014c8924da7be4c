"""Watching actors that Ray starts again, and those that it does not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray

from verl_core.errors import DeadlineExceeded, RolloutError
from verl_core.rollout.server_state import ServerState, Stage
from verl_core.rollout.usage import ServerUsage
from verl_core.trainer import watch as module
from verl_core.trainer.rollout_side import Meter
from verl_core.trainer.watch import Watch


@ray.remote(num_cpus=0, max_concurrency=4)
class Member:
    """Answers, sleeps, dies, or says that it is a server that is not well."""

    def __init__(self, sleeps_s: float = 0.0, stage: Stage = "ready", error: str = "") -> None:
        time.sleep(sleeps_s)
        self._state = ServerState(0, os.getpid(), stage, 3, False, "gate open", error)

    async def ping(self) -> ServerState:
        return self._state

    async def stuck(self) -> None:
        await asyncio.sleep(60)

    async def die(self) -> None:
        os._exit(1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, ray_cluster: None) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)


def until(watch: Watch, ends: Callable[[dict[str, Any]], bool], seconds: float = 120.0) -> dict[str, Any]:
    limit = time.monotonic() + seconds
    while not ends(answers := watch.look()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    return answers


def test_healthy_ones_answer_and_one_that_is_gone_for_good_is_an_error_at_once(quick: None) -> None:
    well, gone = Member.remote(), Member.remote()
    watch = Watch({"server-0": (well, "ping"), "agent-0": (gone, "ping")}, back_s=300)
    answers = until(watch, lambda found: len(found) == 2)
    assert answers["server-0"].version == 3
    ray.kill(gone)
    with pytest.raises(RolloutError, match=r"agent-0 is gone for good: ActorDiedError"):
        until(watch, lambda found: False)
    ray.kill(well)


def test_one_that_ray_starts_again_is_waited_for(quick: None) -> None:
    member = Member.options(max_restarts=-1, max_task_retries=0).remote()
    watch = Watch({"server-0": (member, "ping")}, back_s=300)
    first = until(watch, bool)["server-0"].pid
    ray.kill(member, no_restart=False)
    second = until(watch, lambda found: bool(found) and found["server-0"].pid != first)["server-0"].pid
    assert second != first
    ray.kill(member)


def test_one_that_does_not_come_back_is_an_error_with_what_was_heard_last(quick: None) -> None:
    member = Member.remote()
    watch = Watch({"server-0": (member, "stuck")}, back_s=1.0)
    with pytest.raises(DeadlineExceeded, match=r"server-0 to be back.*does not answer within"):
        until(watch, lambda found: False)
    ray.kill(member)


def test_a_server_that_is_loading_is_away_and_one_that_failed_is_lost(quick: None) -> None:
    loading, failed = Member.remote(stage="loading the model"), Member.remote(stage="failed", error="no such model")
    watch = Watch({"server-0": (loading, "ping")}, back_s=1.0)
    with pytest.raises(DeadlineExceeded, match=r"server-0 to be back.*stage=loading the model"):
        until(watch, bool)
    with pytest.raises(RolloutError, match="server-1 was started again and failed: no such model"):
        until(Watch({"server-1": (failed, "ping")}, back_s=300), bool)
    ray.kill(loading)
    ray.kill(failed)


def test_numbers_of_a_server_survive_its_restarts() -> None:
    meter, state = Meter(), ServerState(0, 1, "ready", 5, False, "")
    meter.read({"server-0": ServerUsage("first", clock_s=10, busy_s=5, tokens=100)}, {"server-0": state})
    told = meter.read({"server-0": ServerUsage("first", clock_s=20, busy_s=14, tokens=150)}, {"server-0": state})
    assert told["servers"] == {"server-0": {"tokens_per_s": 5.0, "busy_share": 0.9, "version": 5}}
    assert (told["tokens"], told["restarts"]) == (150, 0)
    told = meter.read({"server-0": ServerUsage("second", clock_s=4, busy_s=1, tokens=8)}, {})
    assert told["servers"] == {"server-0": {"tokens_per_s": 2.0, "busy_share": 0.25}}
    assert (told["tokens"], told["restarts"]) == (158, 1)
    assert (meter.report().tokens, meter.report().restarts) == (158, 1)

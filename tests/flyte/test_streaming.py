"""Streaming tasks run at the same time under local execution, and one failure ends all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from flytekit.core.context_manager import FlyteContextManager

from tasks.siblings import Siblings
from tasks.streaming import SIBLINGS
from tests.flyte import streaming_flow
from verl_core.config import to_dict
from verl_core.config.schema import RunConfig
from verl_core.errors import DeadlineExceeded

CONFIG = to_dict(RunConfig())


@pytest.fixture(autouse=True)
def fresh(ray_cluster: None) -> Iterator[None]:
    streaming_flow.STOP.clear()
    while not streaming_flow.ITEMS.empty():
        streaming_flow.ITEMS.get_nowait()
    yield
    streaming_flow.STOP.set()


def test_producer_and_consumer_run_at_the_same_time() -> None:
    count, common = streaming_flow.stream(config=CONFIG, wanted=20)
    assert count == 20
    assert common > 0.05  # 20 items, 5 ms each: one after the other they would have nothing in common


def test_a_second_run_in_the_process_starts_clean() -> None:
    with pytest.raises(RuntimeError, match="the producer broke"):
        streaming_flow.stream(config=CONFIG, wanted=50, producer_fails=3)
    assert SIBLINGS.state() == "no task runs"
    streaming_flow.STOP.clear()
    assert streaming_flow.stream(config=CONFIG, wanted=5)[0] == 5


@pytest.mark.parametrize(
    ("failures", "message"),
    [({"producer_fails": 3}, "the producer broke"), ({"consumer_fails": 3}, "the consumer broke")],
)
def test_the_failure_of_either_ends_both_with_its_own_error(failures: dict[str, int], message: str) -> None:
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=message):
        streaming_flow.stream(config=CONFIG, wanted=50, **failures)
    assert time.monotonic() - started < streaming_flow.LIMIT_S / 2  # the sibling's own patience did not run out first


def test_a_task_that_nobody_could_wait_for_is_refused() -> None:
    with pytest.raises(TypeError, match="needs an output"):
        streaming_flow.silent.local_execute(FlyteContextManager.current_context(), config=CONFIG)


def test_a_wait_has_a_limit_and_says_who_is_stuck() -> None:
    siblings, leave = Siblings(), threading.Event()
    quick = siblings.launch("quick", lambda: 1, 10)
    stuck = siblings.launch("stuck", lambda: leave.wait(10), 0.2)
    assert siblings.wait(quick) == 1
    with pytest.raises(DeadlineExceeded, match=r"streaming task stuck.*quick: ended, stuck: running"):
        siblings.wait(stuck)
    leave.set()


def test_a_failure_reaches_the_one_who_waits_for_another() -> None:
    siblings, leave = Siblings(), threading.Event()
    long = siblings.launch("long", lambda: leave.wait(10), 10)
    siblings.launch("broken", lambda: 1 / 0, 10)
    with pytest.raises(ZeroDivisionError):
        siblings.wait(long)
    leave.set()

"""A producer and a consumer that need each other, as a workflow: the shape of an asynchronous run."""

from __future__ import annotations

import queue
import threading
import time
from typing import NamedTuple

from flytekit import dynamic, task, workflow

from tasks.ray_config import ray_config
from tasks.streaming import StreamingRayConfig
from verl_core.config.schema import RayConfig

ITEMS: queue.Queue[int] = queue.Queue()
STOP = threading.Event()
LIMIT_S = 20.0


class Worked(NamedTuple):
    """How much, and between which two moments."""

    count: int
    started: float
    ended: float


@task(task_config=ray_config(RayConfig(), StreamingRayConfig))
def produce(config: dict, fail_after: int) -> Worked:
    """Until it is told to stop, as a rollout stream does."""
    started, count = time.monotonic(), 0
    while not STOP.wait(0.005):
        if count == fail_after:
            raise RuntimeError("the producer broke")
        if time.monotonic() - started > LIMIT_S:
            raise TimeoutError("nobody consumes: the two do not run at the same time")
        ITEMS.put(count)
        count += 1
    return Worked(count, started, time.monotonic())


@task(task_config=ray_config(RayConfig(), StreamingRayConfig))
def consume(config: dict, wanted: int, fail_after: int) -> Worked:
    """A number of items, then tell the producer to stop."""
    started = time.monotonic()
    for count in range(wanted):
        if count == fail_after:
            raise RuntimeError("the consumer broke")
        ITEMS.get(timeout=LIMIT_S)
    STOP.set()
    return Worked(wanted, started, time.monotonic())


@task
def overlap(a: float, b: float, c: float, d: float) -> float:
    """Seconds that [a, b] and [c, d] have in common."""
    return min(b, d) - max(a, c)


@dynamic
def both(config: dict, wanted: int, producer_fails: int, consumer_fails: int) -> tuple[int, float]:
    """Producer and consumer without an edge between them, then a plain task that needs both."""
    made = produce(config=config, fail_after=producer_fails)
    used = consume(config=config, wanted=wanted, fail_after=consumer_fails)
    return used.count, overlap(a=made.started, b=made.ended, c=used.started, d=used.ended)


@workflow
def stream(config: dict, wanted: int, producer_fails: int = -1, consumer_fails: int = -1) -> tuple[int, float]:
    """The whole."""
    return both(config=config, wanted=wanted, producer_fails=producer_fails, consumer_fails=consumer_fails)


@task(task_config=ray_config(RayConfig(), StreamingRayConfig))
def silent(config: dict) -> None:
    """A streaming task that nobody could wait for."""

"""Rendezvous: how the task that holds the cluster and the nodes that use it find each other, through the run directory.

    rendezvous/<execution>/address   of the held Ray cluster; written anew by every attempt of the holder
    rendezvous/<execution>/holder    heartbeat of the holder
    rendezvous/<execution>/driver    heartbeat of whichever node is at work
    rendezvous/<execution>/stop      the run is over; the holder ends

Invariant: both sides watch the other's heartbeat, so that a dead one is an error and never an endless wait.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from verl_core.deadline import Deadline
from verl_core.record.rundir import RunDir

Side = Literal["holder", "driver"]

BEAT_S = 15.0
SILENCE_S = (
    180.0  # a side is dead when its heartbeat is older: twelve beats, whatever the clocks' difference of seconds
)
_POLL_S = 2.0


class Rendezvous:
    """Args:
    run: the run directory, on storage that all pods reach.
    execution: name of the Flyte execution.
    """

    def __init__(self, run: RunDir, execution: str) -> None:
        self._run, self._folder = run, f"rendezvous/{execution}"

    def publish(self, address: str) -> None:
        """The held cluster is up at `address`."""
        self.beat("holder")
        self._write("address", address)

    def address(self, seconds: float) -> str:
        """Address of the living cluster; waits for it.

        Raises:
            DeadlineExceeded: no holder has come up, or it went silent and no other attempt took over.
        """
        deadline = Deadline("the task hold_cluster to publish its Ray cluster", seconds, self.state)
        while self.silence("holder") > SILENCE_S or not (found := self._read("address")):
            deadline.check()
            time.sleep(_POLL_S)
        return found

    def stop(self) -> None:
        """Tell the holder that the run is over."""
        self._write("stop", "1")

    def stopped(self) -> bool:
        """Whether the run is over."""
        return self._run.exists(f"{self._folder}/stop")

    def beat(self, side: Side) -> None:
        """`side` is alive now."""
        self._write(side, repr(time.time()))

    def silence(self, side: Side) -> float:
        """Seconds since the last heartbeat of `side`; infinite when there was none."""
        text = self._read(side)
        return time.time() - float(text) if text else float("inf")

    def state(self) -> str:
        """What is known of both sides."""
        seen = {side: self.silence(side) for side in ("holder", "driver")}
        beats = ", ".join(f"{k}: " + ("never seen" if s == float("inf") else f"{s:.0f} s ago") for k, s in seen.items())
        return f"{self._run.url(self._folder)}: {beats}, stop marker: {self.stopped()}"

    def _write(self, name: str, text: str) -> None:
        self._run.publish_bytes(f"{self._folder}/{name}", text.encode())

    def _read(self, name: str) -> str:
        path = f"{self._folder}/{name}"
        return self._run.read(path).decode() if self._run.exists(path) else ""


class Pulse:
    """While entered, a thread beats for one side."""

    def __init__(self, rendezvous: Rendezvous, side: Side, every_s: float = BEAT_S) -> None:
        self._rendezvous, self._side, self._every_s = rendezvous, side, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name=f"pulse-{side}")

    def __enter__(self) -> Self:
        self._rendezvous.beat(self._side)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(timeout=self._every_s)

    def _keep(self) -> None:
        while not self._end.wait(self._every_s):
            # Storage may fail for a moment; if it lasts, the silence is noticed by the other side.
            with suppress(OSError):
                self._rendezvous.beat(self._side)

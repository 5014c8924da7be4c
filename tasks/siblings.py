"""Siblings: the tasks that run at once in one local execution. Invariant: the first failure ends the wait for all.

That is what propeller does on a cluster (FAIL_IMMEDIATELY): independent nodes run together, a failure aborts the rest.
"""

from __future__ import annotations

import concurrent.futures as cf
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verl_core.deadline import Deadline

_GLANCE_S = 1.0


@dataclass(eq=False)
class Flight:
    """One started task: its name for messages, how many seconds it may take, and what it will give."""

    name: str
    limit_s: float
    result: cf.Future[Any] = field(default_factory=cf.Future)


class Siblings:
    """The flights of this process."""

    def __init__(self) -> None:
        self._flights: list[Flight] = []
        self._failed: list[Flight] = []  # in the order of their failures: later ones may be mere consequences
        self._lock = threading.Lock()

    def launch(self, name: str, body: Callable[[], Any], limit_s: float) -> Flight:
        """Run `body` in a thread of its own and return at once."""
        flight = Flight(name, limit_s)
        with self._lock:
            self._flights.append(flight)
        # A daemon: after a failure the process must be able to end while a sibling is still in its work.
        threading.Thread(target=self._fly, args=(flight, body), daemon=True, name=f"flyte-{name}").start()
        return flight

    def wait(self, flight: Flight) -> Any:
        """What the flight gives.

        Raises:
            DeadlineExceeded: it is not done `limit_s` seconds after the wait began.
            BaseException: its own error, or that of the sibling that failed first.
        """
        deadline = Deadline(f"the streaming task {flight.name}", flight.limit_s, self.state)
        while not flight.result.done():
            pending = [other.result for other in self._open() if not other.result.done()]
            cf.wait(pending, timeout=min(_GLANCE_S, deadline.left), return_when=cf.FIRST_COMPLETED)
            self._raise_failure()
            deadline.check()
        self._raise_failure()
        return flight.result.result()

    def state(self) -> str:
        """Which tasks run, have ended, or failed."""
        return ", ".join(f"{flight.name}: {_state_of(flight.result)}" for flight in self._open()) or "no task runs"

    def _open(self) -> list[Flight]:
        with self._lock:
            return list(self._flights)

    def _raise_failure(self) -> None:
        with self._lock:
            failed = [flight for flight in self._failed if flight in self._flights]
            if not failed:
                return
            self._flights.clear()  # the execution is over; the next one in this process starts clean
            self._failed.clear()
        failed[0].result.result()

    def _fly(self, flight: Flight, body: Callable[[], Any]) -> None:
        try:
            flight.result.set_result(body())
        except BaseException as error:  # noqa: BLE001  whatever ends the thread must reach the thread that waits
            with self._lock:
                self._failed.append(flight)
            flight.result.set_exception(error)


def _state_of(result: cf.Future[Any]) -> str:
    if not result.done():
        return "running"
    return "ended" if result.exception() is None else f"failed with {result.exception()!r}"

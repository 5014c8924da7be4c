"""World: virtual time, and what happens in it. Invariant: time moves in `advance` and `until` only, from event to
event; between two events nothing changes, so a run is a function of its settings and no real second passes in it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence

from benchmarks.simulate.devices import Request, Server, ServerSpeed

Completion = Callable[[Server, list[Request]], None]


class World:
    """Servers and a clock.

    Args:
        count: servers.

    Attributes:
        now: seconds since the start.
        events: how many completions there were.
        servers: by name.
        on_done: told (server, requests) of what completed.
    """

    def __init__(self, count: int, speed: ServerSpeed) -> None:
        self.now = 0.0
        self.events = 0
        self.servers = {f"server-{index}": Server(f"server-{index}", speed) for index in range(count)}
        self.on_done: Completion | None = None
        self._due: list[tuple[float, int, int, Server]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        """`now`, as a function."""
        return self.now

    def touch(self, servers: Sequence[Server]) -> None:
        """Plan anew when each of these has its next completion; call it after anything was done to one."""
        for server in servers:
            due = server.next_completion()
            if due < math.inf:
                heapq.heappush(self._due, (due, next(self._order), server.stamp, server))

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.until(lambda: False, self.now + seconds)

    def until(self, happened: Callable[[], bool], deadline: float) -> None:
        """Let time pass until `happened`, asked after every event, or until `deadline`."""
        while not happened():
            event = self._next()
            if event is None or event[0] > deadline:
                self.now = max(self.now, deadline)
                return
            heapq.heappop(self._due)
            self.now = max(self.now, event[0])
            self._complete(event[3])

    def _next(self) -> tuple[float, int, int, Server] | None:
        """The next event that still stands."""
        while self._due and self._due[0][2] != self._due[0][3].stamp:
            heapq.heappop(self._due)
        return self._due[0] if self._due else None

    def _complete(self, server: Server) -> None:
        gone = server.completed(self.now)
        self.events += 1
        self.touch([server])
        if gone and self.on_done is not None:
            self.on_done(server, gone)

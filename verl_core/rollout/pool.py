"""ServerPool: which server gets the next request. Owner: one agent worker; use it on that worker's event loop only.

Invariant: every acquired seat is released exactly once, whatever happened to its server meanwhile, and a server that
left or is suspended gets no new request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from verl_core.deadline import Deadline

Handle = TypeVar("Handle")

STICKY_SLACK = 8  # a group's sessions stay together (their prompt is cached there) while the imbalance is below this
STICKY_KEYS = 10_000
FIRST_REST_S, LONGEST_REST_S = 0.25, 5.0


@dataclass(eq=False, slots=True)
class Seat(Generic[Handle]):
    """The right to send one request to a server; give it back with `ServerPool.release`."""

    name: str
    handle: Handle
    released: bool = False


@dataclass(slots=True)
class _Server(Generic[Handle]):
    handle: Handle
    seats: set[Seat[Handle]] = field(default_factory=set)
    rest_s: float = 0.0
    rests_until: float = 0.0
    last_error: str = ""


class ServerPool(Generic[Handle]):
    """Least requests in flight first, ties broken at random.

    Args:
        servers: handle by name.
        seed: of the tie-break; workers should differ or all of them start with the same server.
    """

    def __init__(self, servers: Mapping[str, Handle], seed: int = 0) -> None:
        self._servers: dict[str, _Server[Handle]] = {}
        self._sticky: OrderedDict[str, str] = OrderedDict()
        self._random = random.Random(seed)  # not for secrets: a tie-break that can be repeated
        self._changed = asyncio.Event()
        self.replace(servers)

    # ---- membership

    def add(self, name: str, handle: Handle) -> None:
        """A server joins, or comes back under a new handle; it starts with nothing in flight."""
        known = self._servers.get(name)
        if known is None or known.handle != handle:
            self._servers[name] = _Server(handle)
        self._changed.set()

    def remove(self, name: str) -> None:
        """A server leaves; its requests in flight may still finish. Unknown names are ignored."""
        self._servers.pop(name, None)

    def replace(self, servers: Mapping[str, Handle]) -> None:
        """Make the membership exactly `servers`."""
        for name in [name for name in self._servers if name not in servers]:
            self.remove(name)
        for name, handle in servers.items():
            self.add(name, handle)

    def mark_dead(self, seat: Seat[Handle], reason: str) -> None:
        """The seat's server could not serve: no new requests for a rest that doubles each time, up to some seconds.

        It is tried again afterwards, since Ray restarts servers under the same handle. A server that was replaced in
        the meantime is not blamed.
        """
        server = self._servers.get(seat.name)
        if server is None or server.handle != seat.handle:
            return
        now = time.monotonic()
        if now >= server.rests_until:  # the first of many requests that failed together counts
            server.rest_s = min(LONGEST_REST_S, 2 * server.rest_s or FIRST_REST_S)
            server.rests_until = now + server.rest_s
        server.last_error = reason

    # ---- seats

    async def acquire(self, request_id: str, deadline: Deadline) -> Seat[Handle]:
        """A seat at the server that should take this request; waits while there is none.

        Args:
            request_id: what precedes its first underscore (the group's uid) is the key of stickiness.
            deadline: of the whole request.

        Raises:
            DeadlineExceeded: no server came in time.
        """
        while True:
            name = self._choose(request_id.split("_", 1)[0])
            if name is not None:
                server = self._servers[name]
                seat = Seat(name, server.handle)
                server.seats.add(seat)
                return seat
            deadline.check()
            await self._wait_for_change(deadline.left)

    def release(self, seat: Seat[Handle], served: bool = False) -> None:
        """Give the seat back. `served` clears the server's record of failures."""
        if seat.released:
            raise ValueError(f"the seat at {seat.name} was released before")
        seat.released = True
        server = self._servers.get(seat.name)
        if server is None or seat not in server.seats:
            return  # taken before the server left or was replaced
        server.seats.remove(seat)
        if served:
            server.rest_s, server.rests_until, server.last_error = 0.0, 0.0, ""

    def state(self) -> str:
        """Servers with their requests in flight and troubles, for error messages."""
        now = time.monotonic()
        return "; ".join(map(self._describe, self._servers, [now] * len(self._servers))) or "the pool has no server"

    @property
    def loads(self) -> dict[str, int]:
        """Requests in flight per server."""
        return {name: len(server.seats) for name, server in self._servers.items()}

    def _choose(self, key: str) -> str | None:
        now = time.monotonic()
        loads = {name: len(server.seats) for name, server in self._servers.items() if server.rests_until <= now}
        if not loads:
            return None
        least = min(loads.values())
        name = self._sticky.get(key)
        if name is None or name not in loads or loads[name] > least + STICKY_SLACK:
            name = self._random.choice([name for name, load in loads.items() if load == least])
        self._sticky[key] = name
        self._sticky.move_to_end(key)
        if len(self._sticky) > STICKY_KEYS:
            self._sticky.popitem(last=False)
        return name

    async def _wait_for_change(self, left_s: float) -> None:
        now = time.monotonic()
        rests = [server.rests_until - now for server in self._servers.values() if server.rests_until > now]
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), min([left_s, *rests]))
        except TimeoutError:
            return  # the caller looks again, and checks its deadline

    def _describe(self, name: str, now: float) -> str:
        server = self._servers[name]
        rests = f", rests {server.rests_until - now:.1f} s more" if server.rests_until > now else ""
        error = f", last error: {server.last_error}" if server.last_error else ""
        return f"{name}: {len(server.seats)} in flight{rests}{error}"

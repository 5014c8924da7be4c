"""The places of the scripted engine. Invariant: never more holders than places, and a free place goes to the request
that has waited longest since it was first sent."""

from __future__ import annotations

import asyncio
import heapq
import itertools

Place = asyncio.Future[None]


class Slots:
    """Owner: one engine, on its event loop.

    Args:
        count: places.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[float, int, Place]] = []
        self._serial = itertools.count()

    def ask(self, since: float) -> Place:
        """A place as soon as there is one: done = held, until `give_back`.

        Args:
            since: when the request was first sent, seconds; among equals the first to ask comes first.
        """
        place: Place = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (since, next(self._serial), place))
        self._hand_out()
        return place

    def give_back(self, place: Place) -> None:
        """Of one that was asked for, whether it came or not."""
        if not place.cancel():
            self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (self._free or self._waiting[0][2].cancelled()):
            _, _, place = heapq.heappop(self._waiting)
            if not place.cancelled():
                self._free -= 1
                place.set_result(None)

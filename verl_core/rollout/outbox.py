"""Outbox: settled groups waiting to be fetched by the driver (legacy path). Owner: one agent worker, on its event loop.

Invariant: a group is handed out once, in the order of settling.
"""

from __future__ import annotations

import asyncio

from verl_core.transfer.group import GroupTag
from verl_core.transfer.interface import Finished


class Outbox:
    """GroupSink that keeps groups until `take`."""

    def __init__(self) -> None:
        self._settled: list[Finished] = []
        self._filled = asyncio.Event()

    def running(self, tag: GroupTag) -> None:
        """Nothing to do: on the legacy path the driver writes `running` when it dispatches."""

    def settled(self, group: Finished) -> None:
        """The group is over."""
        self._settled.append(group)
        self._filled.set()

    @property
    def waiting(self) -> int:
        """Settled groups not yet fetched."""
        return len(self._settled)

    async def take(self, timeout_s: float) -> list[Finished]:
        """All that waits, at once when there is any, else after up to `timeout_s`."""
        try:
            await asyncio.wait_for(self._filled.wait(), timeout_s)
        except TimeoutError:
            return []
        self._filled.clear()
        taken, self._settled = self._settled, []
        return taken

    async def forget(self) -> None:
        """Drop what was not fetched."""
        self._settled = []
        self._filled.clear()

    async def close(self) -> None:
        """Nothing is held."""

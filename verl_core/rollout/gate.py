"""The door of a server. Invariant: a request is counted from the moment it may reach the engine until it was answered.

So "closed and nobody inside" means that the engine has no request and gets none, which an engine's own abort or pause
does not promise: a request may be on its way in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from verl_core.deadline import Deadline
from verl_core.errors import EngineDead
from verl_core.rollout.interface import GateMode


class GateClosed(EngineDead):
    """The server takes no requests now; send the request to another one."""


class Gate:
    """Owner: one LLMServer, on its event loop."""

    def __init__(self) -> None:
        self.mode: GateMode = "open"
        self.inside: dict[str, int] = {}
        self.parked = 0
        self._holds = 0
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether requests are kept out now."""
        return self._holds > 0 or self.mode != "open"

    def set(self, mode: GateMode) -> None:
        """open lets requests in, park makes them wait, reject sends them away (those that were parked, too)."""
        self.mode = mode
        self._notify()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Closed while the block runs, whatever the mode says; requests park unless the mode is reject."""
        self.hold()
        try:
            yield
        finally:
            self.unhold()

    def hold(self) -> None:
        """Close until `unhold`; holds are counted."""
        self._holds += 1

    def unhold(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        self._notify()

    @asynccontextmanager
    async def pass_through(self, request_id: str, deadline: Deadline) -> AsyncIterator[None]:
        """Wait at the gate, then be inside while the block runs.

        Raises:
            GateClosed: the gate rejects.
            DeadlineExceeded: parked for too long.
        """
        if self.closed:
            await self._park(request_id, deadline)
        self.inside[request_id] = self.inside.get(request_id, 0) + 1
        try:
            yield
        finally:
            self.inside[request_id] -= 1
            if not self.inside[request_id]:
                del self.inside[request_id]
            self._notify()

    async def emptied(self, deadline: Deadline) -> None:
        """Until nobody is inside. Raises DeadlineExceeded."""
        while self.inside:
            await self._wait(deadline)

    def state(self) -> str:
        """For error messages."""
        some = ", ".join(list(self.inside)[:8])
        return f"gate {self.mode}, {self._holds} holds, {self.parked} parked, {len(self.inside)} inside ({some})"

    async def _park(self, request_id: str, deadline: Deadline) -> None:
        self.parked += 1
        try:
            while self.closed:
                if self.mode == "reject":
                    raise GateClosed(f"the server takes no requests now; send {request_id} elsewhere")
                await self._wait(deadline)
        finally:
            self.parked -= 1

    async def _wait(self, deadline: Deadline) -> None:
        deadline.check()
        try:
            await asyncio.wait_for(self._changed.wait(), max(deadline.left, 0.001))
        except TimeoutError as error:
            raise deadline.expired() from error

    def _notify(self) -> None:
        """Wake all that wait; each looks for itself."""
        self._changed.set()
        self._changed = asyncio.Event()

"""LoopThread: an event loop in a thread of its own. Invariant: `run` ends within its deadline, whatever the coroutine
does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from verl_core.errors import DeadlineExceeded, StoreError

_GRACE_S = 5.0  # beyond a call's own deadline: the loop itself is stuck
T = TypeVar("T")


class LoopThread:
    """Callable from any thread of the process that made it; a forked child gets an error, not a hang."""

    def __init__(self, name: str) -> None:
        self._pid, self._closed = os.getpid(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, name: str, work: Callable[[], Awaitable[T]], timeout_s: float, state: Callable[[], str]) -> T:
        """Result of the coroutine `work()`, cancelled after `timeout_s`. Errors of the coroutine pass through.

        Raises:
            DeadlineExceeded: with `state()`.
            StoreError: this is a fork of the owner, the loop is closed, or the caller is the loop.
        """
        self._check_usable(name)
        started = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(_bounded(work, timeout_s), self._loop)
        try:
            return future.result(timeout_s + _GRACE_S)
        except TimeoutError as error:
            future.cancel()
            raise DeadlineExceeded(name, time.monotonic() - started, state()) from error

    def close(self) -> bool:
        """Stop the loop; True when its thread ended, so that its sockets may be closed. Does nothing in a fork."""
        if self._closed or self._pid != os.getpid():
            return False
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_GRACE_S)
        if self._thread.is_alive():
            return False
        self._loop.close()
        return True

    def _check_usable(self, name: str) -> None:
        if self._pid != os.getpid():
            raise StoreError(
                f"{name}: this connection belongs to process {self._pid}, and this is its fork {os.getpid()}, where it "
                "would hang. Join the store again in the child, or start it with the spawn method"
            )
        if self._closed:
            raise StoreError(f"{name}: this store connection was closed")
        if threading.current_thread() is self._thread:
            raise StoreError(f"{name}: called on the connection's own loop thread, where it would wait for itself")


async def _bounded(work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    return await asyncio.wait_for(work(), timeout_s)

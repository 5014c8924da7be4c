"""The deadline wrapper around every call."""

from __future__ import annotations

import asyncio
import time

import pytest

from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.transfer.loop_thread import LoopThread


def test_results_and_errors_pass_through() -> None:
    loop = LoopThread("test")

    async def fails() -> None:
        raise ValueError("boom")

    assert loop.run("sleep", lambda: asyncio.sleep(0, "done"), 5, lambda: "") == "done"
    with pytest.raises(ValueError, match="boom"):
        loop.run("fails", fails, 5, lambda: "")
    assert loop.close()
    with pytest.raises(StoreError, match="closed"):
        loop.run("late", lambda: asyncio.sleep(0), 5, lambda: "")
    assert not loop.close()


def test_a_hung_coroutine_ends_at_its_deadline_with_name_and_state() -> None:
    loop = LoopThread("test")
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="hung call") as caught:
        loop.run("hung call", lambda: asyncio.sleep(60), 0.2, lambda: "what is known")
    assert time.monotonic() - started < 2
    assert caught.value.state == "what is known"
    assert caught.value.waited_s >= 0.2
    assert loop.run("next", lambda: asyncio.sleep(0, 1), 5, lambda: "") == 1
    loop.close()


def test_a_blocked_loop_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelling is no use when the loop itself does not turn."""
    monkeypatch.setattr("verl_core.transfer.loop_thread._GRACE_S", 0.2)
    loop = LoopThread("test")

    async def blocks() -> None:
        time.sleep(1.5)

    with pytest.raises(DeadlineExceeded, match="blocked"):
        loop.run("blocked", blocks, 0.2, lambda: "")
    assert not loop.close()


def test_calling_from_the_loop_itself_is_refused() -> None:
    loop = LoopThread("test")

    async def nested() -> None:
        loop.run("inner", lambda: asyncio.sleep(0), 5, lambda: "")

    with pytest.raises(StoreError, match="wait for itself"):
        loop.run("outer", nested, 5, lambda: "")
    loop.close()

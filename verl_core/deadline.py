"""Named waits. Invariant: nothing in this project waits without a limit, a name and a state dump."""

from __future__ import annotations

import time
from collections.abc import Callable

from verl_core.errors import DeadlineExceeded


class Deadline:
    """A budget of seconds for one named wait.

    Args:
        name: what is waited for, as the user should read it.
        seconds: budget; must be positive and finite.
        state: called once when the budget is spent, to describe what is stuck.
    """

    def __init__(self, name: str, seconds: float, state: Callable[[], str] = lambda: "nothing more is known") -> None:
        if not 0 < seconds < float("inf"):
            raise ValueError(f"the deadline of {name!r} must be positive and finite, got {seconds}")
        self.name, self.seconds, self._state = name, seconds, state
        self._started = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.seconds - self.waited)

    def check(self) -> None:
        """Raise `DeadlineExceeded`, with the state dump, if the budget is spent."""
        if self.waited >= self.seconds:
            raise self.expired()

    def expired(self) -> DeadlineExceeded:
        """The error for this wait, for callers whose own wait already told them that time is up."""
        return DeadlineExceeded(self.name, self.waited, self._state())

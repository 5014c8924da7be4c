"""RateLimit: a bound on starts per second, over all threads. Invariant: two starts are at least 1 / rate apart."""

from __future__ import annotations

import threading
import time


class RateLimit:
    """Args:
    per_second: greater than 0; None = no limit.
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap = 0.0 if per_second is None else 1.0 / per_second
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        """Until the caller may start. Callers are let through in the order in which they came; n that wait are
        through after n / rate seconds."""
        with self._lock:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + self._gap
        if mine > now:
            time.sleep(mine - now)

"""What went wrong in the background. Invariant: no failure of a background task is silent; the newest ones are kept
in words, all of them are counted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_KEPT = 50


@dataclass
class Trouble:
    """Attributes:
    count: failures so far.
    newest: their messages, oldest first.
    """

    count: int = 0
    newest: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def record(self, message: str) -> None:
        """Keep one more failure."""
        self.count += 1
        self.newest.append(message)

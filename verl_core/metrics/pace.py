"""Pace: how long a run still takes. Invariant: judged by the last steps only, so a slow start or a resume does not
mislead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW = 20


class Pace:
    """Args:
    total_steps: last step.
    clock: seconds; replaced in tests.
    """

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock, self._opened = total_steps, clock, clock()
        self._marks: deque[tuple[int, float]] = deque(maxlen=_WINDOW + 1)

    def mark(self, step: int) -> None:
        """`step` is done now. Step 0 (validation before training) takes no part in it, nor does a repeated step."""
        if not self._marks:
            self._marks.append((0, self._clock()) if step == 0 else (step - 1, self._opened))
        if step > self._marks[-1][0]:
            self._marks.append((step, self._clock()))

    @property
    def step_seconds(self) -> float | None:
        """Mean over the last steps; None before the first."""
        if len(self._marks) < 2:
            return None
        (first, start), (last, end) = self._marks[0], self._marks[-1]
        return (end - start) / (last - first)

    @property
    def left(self) -> float | None:
        """Seconds to the last step; None before the first."""
        pace = self.step_seconds
        return None if pace is None else pace * max(0, self._total - self._marks[-1][0])

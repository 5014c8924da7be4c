"""SimulatedStore: the memory store whose doorbell is virtual. Invariant: waiting is the only thing it does otherwise:
it lets the world go on to the next group that settles."""

from __future__ import annotations

from typing import Final

from benchmarks.simulate.world import World
from verl_core.transfer.memory import MemoryStore

_PATIENCE_S: Final = 1e9  # virtual seconds


class SimulatedStore(MemoryStore):
    """Args:
    bell_s: how long a ring is held back for others that follow it; a coarser doorbell, fewer looks.
    """

    def __init__(self, world: World, bell_s: float = 0.0) -> None:
        super().__init__()
        self._world, self._bell_s = world, bell_s

    def wait(self, timeout_s: float) -> list[str]:
        """See TrajectoryStore. Whoever waits would ask again and again until something rings, so it is asked once."""
        if not self._rung and timeout_s > 0:
            self._world.until(lambda: bool(self._rung), self._world.now + _PATIENCE_S)
            if self._rung and self._bell_s:
                self._world.advance(self._bell_s)
        rung = list(self._rung)
        self._rung.clear()
        return rung

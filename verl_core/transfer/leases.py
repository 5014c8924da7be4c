"""Leases: when a group that does not settle is given up. Invariant: a lease counts only seconds in which somebody could
have worked: while the servers sleep it stands still."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.transfer.flight import Clock, Flight, Stage
from verl_core.transfer.landing import Failure


class ServiceClock:
    """Monotonic seconds without those between `pause` and `resume`; both are idempotent."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._stood_still = 0.0
        self._paused_at: float | None = None

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._paused_at is not None

    def now(self) -> float:
        """Seconds."""
        at = self.clock.monotonic() if self._paused_at is None else self._paused_at
        return at - self._stood_still

    def pause(self) -> None:
        """Stand still."""
        if self._paused_at is None:
            self._paused_at = self.clock.monotonic()

    def resume(self) -> None:
        """Go on from where it stood."""
        if self._paused_at is not None:
            self._stood_still += self.clock.monotonic() - self._paused_at
            self._paused_at = None


class Leases:
    """Args:
    lease_s: seconds a group may run, or wait while nothing moves.
    """

    def __init__(self, lease_s: float, clock: ServiceClock) -> None:
        self._lease_s, self._clock = lease_s, clock
        self._last_move = clock.now()

    def moved(self) -> None:
        """Something went out, was taken up, or settled."""
        self._last_move = self._clock.now()

    def overrun(self, flights: Sequence[Flight]) -> list[Failure]:
        """Those whose lease ran out.

        A running group has its lease from when it was first seen running. A pending one may wait behind others as long
        as these move; when nothing moved for a whole lease, whoever should take it up is gone.
        """
        now = self._clock.now()
        return [self._failure(flight) for flight in flights if now - self._begun(flight) >= self._lease_s]

    def _begun(self, flight: Flight) -> float:
        return flight.since if flight.stage is Stage.RUNNING else max(flight.since, self._last_move)

    def _failure(self, flight: Flight) -> Failure:
        message = f"its lease of {self._lease_s:.0f} s ran out while {flight.stage}, owner {flight.owner or 'none'}"
        return Failure(flight, "expired", (message,))

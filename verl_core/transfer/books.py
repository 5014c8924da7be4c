"""Books: which group is where. Invariant: a served group is in exactly one place (open, arrived, claimed, trained,
dropped), and every change of place is told to the ledger first: if that fails, the group is where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from verl_core.errors import StoreError
from verl_core.transfer.accounting import Accounting, kind_of
from verl_core.transfer.drops import Drops
from verl_core.transfer.eviction import Eviction
from verl_core.transfer.flight import Flight, Stage
from verl_core.transfer.landing import Failure
from verl_core.transfer.leases import ServiceClock
from verl_core.transfer.ledger import Event, Ledger

_DUMPED = 20


class Books:
    """Attributes:
    open: flights by uid that have not settled as far as known.
    arrived, claimed: flights by uid whose rows are in memory; the claimed ones are with the trainer.
    retired: every uid that will never be read again; what still appears under it comes from a late writer.
    bases: base uids of all groups this buffer ever had.
    drops: for the metrics.
    """

    def __init__(self, ledger: Ledger, clock: ServiceClock) -> None:
        self._ledger, self._clock = ledger, clock
        self.open: dict[str, Flight] = {}
        self.arrived: dict[str, Flight] = {}
        self.claimed: dict[str, Flight] = {}
        self.retired: set[str] = set()
        self.bases: set[str] = set()
        self.drops = Drops()
        self.counts = Accounting()  # without the numbers of now

    def knows(self, uid: str) -> bool:
        """Whether this buffer ever had an attempt of this uid."""
        return uid in self.open or uid in self.arrived or uid in self.claimed or uid in self.retired

    def serve(self, flights: Sequence[Flight]) -> None:
        """New groups are open."""
        for step in sorted({flight.prompt.step for flight in flights}):
            self._record("served", [flight for flight in flights if flight.prompt.step == step], step=step)
        self.open.update(_by_uid(flights))
        self.bases.update(flight.prompt.base_uid for flight in flights)
        self.counts.served += len(flights)

    def adopt(self, flights: Sequence[Flight]) -> None:
        """Groups that an earlier process of the run served and finished have arrived."""
        self._record("adopted", flights)
        self._move(flights, Stage.ARRIVED, {}, self.arrived)
        self.bases.update(flight.prompt.base_uid for flight in flights)
        self.counts.served += len(flights)
        self._measure(flights)

    def arrive(self, flights: Sequence[Flight]) -> None:
        """Open groups have arrived."""
        self._record("finished", flights)
        self._move(flights, Stage.ARRIVED, self.open, self.arrived)
        self.counts.finished += len(flights)
        self._measure(flights)

    def claim(self, flights: Sequence[Flight], step: int) -> None:
        """Arrived groups belong to the trainer, who asked for them at global `step`."""
        self._record("claimed", flights, step=step)
        for flight in flights:
            flight.step = step
        self._move(flights, Stage.CLAIMED, self.arrived, self.claimed)
        self.retired.update(_by_uid(flights))

    def train(self, flights: Sequence[Flight]) -> None:
        """Claimed groups are in the weights."""
        for step in sorted({flight.step for flight in flights}):
            self._record("trained", [flight for flight in flights if flight.step == step], step=step)
        self._leave(flights, self.claimed)
        self.counts.trained += len(flights)
        for flight in flights:
            self.drops.train(flight.longest)

    def drop(self, flights: Sequence[Flight], reason: str) -> None:
        """Claimed groups will not be trained on."""
        self._dropped(flights, (reason,), (), max((flight.step for flight in flights), default=-1))
        self._leave(flights, self.claimed)

    def evict(self, evictions: Sequence[Eviction], step: int) -> None:
        """Arrived groups will not be trained on; one event for those that have the same reasons."""
        for reasons in dict.fromkeys(eviction.reasons for eviction in evictions):
            flights = [eviction.flight for eviction in evictions if eviction.reasons == reasons]
            self._dropped(flights, reasons, (), step)
            self._leave(flights, self.arrived)
            self.retired.update(_by_uid(flights))

    def abandon(self, reason: str, step: int) -> list[Flight]:
        """Open and arrived groups will not be trained on; returns them."""
        flights = [*self.open.values(), *self.arrived.values()]
        self._dropped(flights, (reason,), (), step)
        self.open.clear()
        self.arrived.clear()
        self.retired.update(_by_uid(flights))
        return flights

    def replace_attempts(self, failures: Sequence[Failure], again: Sequence[Flight], step: int) -> None:
        """Open attempts failed: they are retired, and their groups go on as `again` or, when not in it, are dropped."""
        for failure in failures:
            self._record("failed", [failure.flight], reason=failure.reason, errors=list(failure.messages))
        self._record("reissued", again)
        going_on = {flight.prompt.base_uid for flight in again}
        for failure in failures:
            if failure.flight.prompt.base_uid not in going_on:
                errors = (*failure.flight.errors, *failure.messages)
                self._dropped([failure.flight], (failure.reason,), errors, step)
        self._leave([failure.flight for failure in failures], self.open)
        self.open.update(_by_uid(again))
        self.retired.update(failure.flight.prompt.uid for failure in failures)
        self.counts.failed += len(failures)
        self.counts.reissued += len(again)
        self.counts.quarantined += sum(failure.reason == "corrupt" for failure in failures)
        self.counts.expired += sum(failure.reason in ("expired", "vanished") for failure in failures)

    def claimed_flights(self, uids: Sequence[str]) -> list[Flight]:
        """The claimed flights of `uids`.

        Raises:
            StoreError: one is not claimed any more or not yet, or is named twice.
        """
        strangers = [uid for uid in uids if uid not in self.claimed]
        if strangers or len(set(uids)) < len(uids):
            raise StoreError(
                f"groups are not claimed, or named twice: {strangers or list(uids)}; each sampled group is cleared or "
                "dropped once"
            )
        return [self.claimed[uid] for uid in uids]

    def accounting(self) -> Accounting:
        """The numbers now."""
        stages = [flight.stage for flight in self.open.values()]
        return replace(
            self.counts,
            dropped=dict(self.counts.dropped),
            pending=stages.count(Stage.PENDING),
            running=stages.count(Stage.RUNNING),
            arrived=len(self.arrived),
            claimed=len(self.claimed),
        )

    def describe(self) -> str:
        """The numbers, and the open groups, running and oldest first: where, since when, whose."""
        now = self._clock.now()
        stuck = sorted(self.open.values(), key=lambda flight: (flight.stage is Stage.PENDING, flight.since))
        lines = [flight.describe(now) for flight in stuck[:_DUMPED]]
        if len(stuck) > _DUMPED:
            lines.append(f"and {len(stuck) - _DUMPED} more open groups")
        return "\n  ".join([f"{self.accounting()}; open groups:", *lines])

    def _dropped(self, flights: Sequence[Flight], reasons: Sequence[str], errors: Sequence[str], step: int) -> None:
        if not flights:
            return
        reason = "; ".join(reasons)
        self._record("dropped", flights, step=step, reason=reason, errors=list(errors))
        kind = kind_of(reason)
        self.counts.dropped[kind] = self.counts.dropped.get(kind, 0) + len(flights)
        for flight in flights:
            group = flight.group
            self.drops.drop(reasons, flight.longest if group else None, group.rewards if group else ())

    def _measure(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self.drops.arrive(flight.longest)

    def _record(self, event: Event, flights: Sequence[Flight], **detail: Any) -> None:
        if flights:
            bases = [flight.prompt.base_uid for flight in flights]
            self._ledger.record(event, list(_by_uid(flights)), base_uids=bases, **detail)

    def _move(
        self, flights: Sequence[Flight], stage: Stage, source: dict[str, Flight], target: dict[str, Flight]
    ) -> None:
        for flight in flights:
            flight.stage, flight.since = stage, self._clock.now()
            source.pop(flight.prompt.uid, None)
        target.update(_by_uid(flights))

    @staticmethod
    def _leave(flights: Sequence[Flight], place: dict[str, Flight]) -> None:
        for flight in flights:
            del place[flight.prompt.uid]


def _by_uid(flights: Sequence[Flight]) -> dict[str, Flight]:
    return {flight.prompt.uid: flight for flight in flights}

"""ReplayBuffer: the trainer's side of the store. Invariant: every served group is trained once or dropped with a
reason.

A group is open (pending, running) until it settles, then its rows are fetched at once (arrived), handed to the
trainer (claimed), and forgotten. An attempt that fails, expires or arrives damaged is retired for good and the group
goes out again under a new uid, so whatever a late writer still does to the old uid is swept away and cannot mix in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from verl_core.config.schema import BufferConfig
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.accounting import Accounting
from verl_core.transfer.flight import Clock, Flight, Group, Stage
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.landing import Failure, land
from verl_core.transfer.ledger import Ledger

Dispatch = Callable[[Sequence[Prompt]], None]
OnArrival = Callable[[list[Group]], None]

_POLL_SHARE = 20  # a listing may cost 1/20 of the time between two
_DUMPED = 20


class ReplayBuffer:
    """Used by one thread. Several buffers may share a store as long as each has a connection (doorbell) of its own.

    Args:
        store: connection to the store.
        config: leases and limits.
        dispatch: sends prompts to the agent workers and returns at once.
        ledger: gets every event; see `Ledger` for which uids it is told.
        reissue: the same prompt as a new attempt: attempt + 1, new uid, same base uid.
        clock: replaced in tests.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        config: BufferConfig,
        dispatch: Dispatch,
        ledger: Ledger,
        reissue: Callable[[Prompt], Prompt],
        clock: Clock | None = None,
    ) -> None:
        self._store, self._config, self._dispatch = store, config, dispatch
        self._ledger, self._again = ledger, reissue
        self._clock = clock or Clock()
        self._open: dict[str, Flight] = {}
        self._arrived: dict[str, Flight] = {}
        self._claimed: dict[str, Flight] = {}
        self._retired: set[str] = set()  # every uid this buffer is done with
        self._counts = Accounting()
        self._next_poll = self._last_move = self._quiet_since = self._clock.monotonic()

    # ---- in

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Open groups and send them out with one dispatch call.

        Raises:
            StoreError: a uid is known already; it would be trained twice.
        """
        if not prompts:
            return
        uids = [prompt.uid for prompt in prompts]
        known = [uid for uid in uids if self._knows(uid)]
        if known or len(set(uids)) < len(uids):
            raise StoreError(f"groups submitted twice: {known or uids}; every attempt needs a new uid")
        flights = [Flight(prompt, self._clock.monotonic()) for prompt in prompts]
        self._store.write_tags([flight.tag(self._clock) for flight in flights])
        bases, ordinals = [p.base_uid for p in prompts], [p.ordinal for p in prompts]
        self._ledger.record("served", bases, ordinals=ordinals)
        self._counts.served += len(flights)
        self._take_off(flights)

    def _knows(self, uid: str) -> bool:
        return uid in self._open or uid in self._arrived or uid in self._claimed or uid in self._retired

    def _take_off(self, flights: list[Flight]) -> None:
        """From here on the flights are open; their tags are written."""
        self._open.update({flight.prompt.uid: flight for flight in flights})
        self._last_move = self._clock.monotonic()
        self._dispatch([flight.prompt for flight in flights])

    # ---- out

    def sample(self, n_groups: int, step: int, on_arrival: OnArrival | None = None) -> list[Group]:
        """Wait for `n_groups` settled groups and claim them; fewer only when groups were dropped and none is open.

        Args:
            step: global step that claims them.
            on_arrival: called with each batch of arrivals, every group once, while others are still being generated.

        Returns:
            The arrived groups of the lowest ordinals, by ordinal.

        Raises:
            StoreError: nothing was submitted.
            DeadlineExceeded: nothing settled for `stall_timeout_s` (says which groups are stuck, and where), or the
                store died.
        """
        if n_groups < 1 or not (self._open or self._arrived):
            raise StoreError(
                f"sample({n_groups}) can never return: {len(self._open)} groups are open; submit prompts first"
            )
        self._quiet_since = self._clock.monotonic()
        self._announce(on_arrival)
        while self._short(n_groups):
            self._look(self._patience())
            if self._short(n_groups) and self._clock.monotonic() >= self._next_poll:
                self._poll()
            self._announce(on_arrival)
            if self._short(n_groups):
                self._check_stall()
        return self._claim(n_groups, step)

    def collect(self) -> int:
        """Take in whatever settled, without waiting. Returns how many groups could be claimed now."""
        self._look(0.0)
        self._poll()
        return len(self._arrived)

    def _short(self, n_groups: int) -> bool:
        return len(self._arrived) < n_groups and bool(self._open)

    def _patience(self) -> float:
        now = self._clock.monotonic()
        return max(0.0, min(self._next_poll, self._quiet_since + self._config.stall_timeout_s) - now)

    def _announce(self, on_arrival: OnArrival | None) -> None:
        fresh = [flight for flight in self._arrived.values() if not flight.announced]
        if on_arrival is None or not fresh:
            return
        for flight in fresh:
            flight.announced = True
        on_arrival([flight.group for flight in fresh if flight.group is not None])

    def _check_stall(self) -> None:
        now = self._clock.monotonic()
        if now - self._quiet_since >= self._config.stall_timeout_s:
            raise DeadlineExceeded("any group to finish", now - self._quiet_since, self.describe())

    def _claim(self, n_groups: int, step: int) -> list[Group]:
        chosen = self._choose(n_groups)
        self._ledger.record("claimed", [f.prompt.base_uid for f in chosen], step=step)
        for flight in chosen:
            self._move(flight, Stage.CLAIMED, self._arrived, self._claimed)
        uids = [flight.prompt.uid for flight in chosen]
        self._retired.update(uids)
        self._store.clear_groups(uids)
        return [flight.group for flight in chosen if flight.group is not None]

    def _choose(self, n_groups: int) -> list[Flight]:
        """Which arrived groups the trainer gets. A staleness policy decides here, and only here."""
        return sorted(self._arrived.values(), key=lambda flight: flight.prompt.ordinal)[:n_groups]

    def _move(self, flight: Flight, stage: Stage, source: dict[str, Flight], target: dict[str, Flight]) -> None:
        flight.stage, flight.since = stage, self._clock.monotonic()
        target[flight.prompt.uid] = source.pop(flight.prompt.uid)

    # ---- done

    def clear(self, groups: Sequence[Group]) -> None:
        """After the update (and its checkpoint): the groups are trained, their rows are freed.

        Raises:
            StoreError: a group is not claimed; it was cleared before or never sampled.
        """
        flights = self._claimed_flights(groups)
        self._ledger.record("trained", [flight.prompt.base_uid for flight in flights])
        self._counts.trained += len(flights)
        self._forget(groups)

    def drop(self, groups: Sequence[Group], reason: str) -> None:
        """Claimed groups that will not be trained on, and why. Raises StoreError like `clear`."""
        self._count_dropped(self._claimed_flights(groups), reason, [])
        self._forget(groups)

    def _claimed_flights(self, groups: Sequence[Group]) -> list[Flight]:
        strangers = [group.prompt.uid for group in groups if group.prompt.uid not in self._claimed]
        if strangers or len({group.prompt.uid for group in groups}) < len(groups):
            raise StoreError(f"groups are not claimed, or named twice: {strangers}; clear each sampled group once")
        return [self._claimed[group.prompt.uid] for group in groups]

    def _forget(self, groups: Sequence[Group]) -> None:
        for group in groups:
            del self._claimed[group.prompt.uid]
        self._store.clear_rows([row.key for group in groups for row in group.trajectories])

    # ---- looking at the store

    def _look(self, timeout_s: float) -> None:
        """Wait for the doorbell and settle what it names; costs nothing for the groups it does not name."""
        rung = [uid for uid in self._store.wait(timeout_s) if uid in self._open or uid in self._retired]
        if rung:
            tags = self._store.read_tags(rung)
            self._sweep([tag for uid, tag in tags.items() if uid in self._retired])
            self._settle([tag for uid, tag in tags.items() if uid in self._open and tag.status.terminal])

    def _poll(self) -> None:
        """The safety net: list all groups, settle lost rings, note who runs what, expire leases."""
        started = self._clock.monotonic()
        looked_for = list(self._open.values())
        tags = self._store.tags()
        now = self._clock.monotonic()
        self._next_poll = now + max(self._config.poll_s, _POLL_SHARE * (now - started))
        self._sweep([tag for uid, tag in tags.items() if uid in self._retired])
        there = [(flight, tags[flight.prompt.uid]) for flight in looked_for if flight.prompt.uid in tags]
        for flight, tag in there:
            self._note(flight, tag)
        self._settle([tag for _, tag in there if tag.status.terminal])
        lost = [
            Failure(f, "vanished", ("its tag is gone from the store",)) for f in looked_for if f.prompt.uid not in tags
        ]
        overdue = [self._overrun(flight) for flight, tag in there if not tag.status.terminal and self._overdue(flight)]
        self._counts.expired += len(lost) + len(overdue)
        self._give_up([*lost, *overdue])

    def _note(self, flight: Flight, tag: GroupTag) -> None:
        """A worker took the group up."""
        if tag.status is GroupStatus.RUNNING and flight.stage is Stage.PENDING:
            flight.stage, flight.owner = Stage.RUNNING, tag.owner
            flight.since = self._last_move = self._clock.monotonic()

    def _overdue(self, flight: Flight) -> bool:
        """A running group has its lease from when it was first seen running. A pending one may wait behind others as
        long as these move; when nothing moved for a whole lease, whoever should take it up is gone."""
        begun = flight.since if flight.stage is Stage.RUNNING else max(flight.since, self._last_move)
        return self._clock.monotonic() - begun >= self._config.lease_s

    def _overrun(self, flight: Flight) -> Failure:
        return Failure(
            flight, "expired", (f"lease of {self._config.lease_s:.0f} s ran out, owner {flight.owner or 'none'}",)
        )

    # ---- settling

    def _settle(self, tags: Sequence[GroupTag]) -> None:
        """Bring in the open groups that `tags`, all terminal, say have settled."""
        arrived, failures = land(self._store, [(self._open[tag.uid], tag) for tag in tags])
        if tags:
            self._quiet_since = self._last_move = self._clock.monotonic()
        if arrived:
            self._counts.finished += len(arrived)
            self._ledger.record("finished", [flight.prompt.uid for flight in arrived])
        for flight in arrived:
            self._move(flight, Stage.ARRIVED, self._open, self._arrived)
        self._counts.quarantined += sum(failure.reason == "corrupt" for failure in failures)
        self._give_up(failures)

    def _give_up(self, failures: Sequence[Failure]) -> None:
        """Retire attempts for good; their groups go out again, or are dropped when they had their attempts."""
        if not failures:
            return
        for failure in failures:
            uid = failure.flight.prompt.uid
            self._ledger.record("failed", [uid], reason=failure.reason, errors=list(failure.messages))
        limit = self._config.max_reissues
        spent = [failure for failure in failures if failure.flight.prompt.attempt >= limit]
        again = [self._next_attempt(failure) for failure in failures if failure.flight.prompt.attempt < limit]
        for failure in failures:
            self._retired.add(failure.flight.prompt.uid)
            del self._open[failure.flight.prompt.uid]
        self._counts.failed += len(failures)
        for failure in spent:
            self._count_dropped([failure.flight], failure.reason, [*failure.flight.errors, *failure.messages])
        self._relaunch(again)
        self._store.clear_rows([key for failure in failures for key in failure.keys])
        self._store.clear_groups([failure.flight.prompt.uid for failure in failures])

    def _next_attempt(self, failure: Failure) -> Flight:
        old = failure.flight.prompt
        new = self._again(old)
        if new.base_uid != old.base_uid or new.attempt != old.attempt + 1 or self._knows(new.uid):
            raise StoreError(
                f"reissue({old.uid}) gave {new.uid} (attempt {new.attempt}); it must be a new uid, attempt + 1"
            )
        return Flight(new, self._clock.monotonic(), errors=(*failure.flight.errors, *failure.messages))

    def _relaunch(self, flights: list[Flight]) -> None:
        if not flights:
            return
        # Open before their tags are written: should the store fail now, they are still accounted for.
        self._open.update({flight.prompt.uid: flight for flight in flights})
        self._counts.reissued += len(flights)
        bases = [flight.prompt.base_uid for flight in flights]
        self._ledger.record("reissued", [flight.prompt.uid for flight in flights], base_uids=bases)
        self._store.write_tags([flight.tag(self._clock) for flight in flights])
        self._take_off(flights)

    def _count_dropped(self, flights: Sequence[Flight], reason: str, errors: list[str]) -> None:
        self._ledger.record("dropped", [f.prompt.base_uid for f in flights], reason=reason, errors=errors)
        self._counts.dropped[reason] = self._counts.dropped.get(reason, 0) + len(flights)

    def _sweep(self, tags: Sequence[GroupTag]) -> None:
        """Clear what late writers left under retired uids."""
        late = [tag for tag in tags if tag.status.terminal]
        self._counts.late += len(late)
        self._store.clear_rows([key for tag in late for key in tag.manifest.keys])
        self._store.clear_groups([tag.uid for tag in tags])

    # ---- telling

    @property
    def ready(self) -> int:
        """Arrived groups, as far as looked."""
        return len(self._arrived)

    def accounting(self) -> Accounting:
        """The numbers now; `balanced` holds between any two calls of this buffer."""
        stages = [flight.stage for flight in self._open.values()]
        return replace(
            self._counts,
            dropped=dict(self._counts.dropped),
            pending=stages.count(Stage.PENDING),
            running=stages.count(Stage.RUNNING),
            arrived=len(self._arrived),
            claimed=len(self._claimed),
        )

    def describe(self) -> str:
        """State dump: the numbers, and the open groups that have been so for longest."""
        now = self._clock.monotonic()
        stuck = sorted(self._open.values(), key=lambda flight: flight.since)
        lines = [flight.describe(now) for flight in stuck[:_DUMPED]]
        if len(stuck) > _DUMPED:
            lines.append(f"and {len(stuck) - _DUMPED} more open groups")
        return "\n  ".join([f"{self.accounting()}, foreign tags {self._store.quarantined_tags}; open groups:", *lines])

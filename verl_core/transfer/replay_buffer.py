"""ReplayBuffer: the trainer's side of the store. Invariant: a served group is trained once, or dropped with a reason.

A group is open (pending, running) until it settles, then its rows are fetched at once (arrived), handed to the trainer
(claimed), and forgotten. An attempt that fails, expires or arrives damaged is retired for good and the group goes out
again under a new uid, so whatever a late writer still does to the old uid is swept away and cannot mix in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_core.config.schema import BufferConfig
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.accounting import Accounting
from verl_core.transfer.books import Books
from verl_core.transfer.flight import Clock, Flight, Group, Stage
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.landing import Failure, land
from verl_core.transfer.ledger import Ledger

__all__ = ["Group", "ReplayBuffer"]

Dispatch = Callable[[Sequence[Prompt]], None]
OnArrival = Callable[[list[Group]], None]

_POLL_SHARE = 20  # a listing may cost 1/20 of the time between two


class ReplayBuffer:
    """Used by one thread. Several buffers may share a store as long as each has a connection (doorbell) of its own.

    Args:
        store: connection to the store.
        config: leases and limits.
        dispatch: sends prompts to the agent workers and returns at once.
        ledger: gets every event; see `Ledger`.
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
        self._store, self._config, self._dispatch, self._reissue = store, config, dispatch, reissue
        self._clock = clock or Clock()
        self._books = Books(ledger, self._clock)
        self._step = 0  # the last one that was worked for
        self._last_move = self._quiet_since = self._clock.monotonic()
        self._next_poll = self._last_move + config.poll_s

    # ---- in

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Open groups and send them out with one dispatch call.

        A uid that is in the store already was served by an earlier process of this run: what it left is used. A settled
        group arrives without being generated again; an open one is dispatched again, which its worker ignores if it
        still has it.

        Raises:
            StoreError: this buffer had the uid before; it would be trained twice.
        """
        uids = [prompt.uid for prompt in prompts]
        known = [uid for uid in uids if self._books.knows(uid)]
        if known or len(set(uids)) < len(uids):
            raise StoreError(f"groups submitted twice: {known or uids}; every attempt needs a new uid")
        self._step = max([self._step, *(prompt.step for prompt in prompts)])
        flights = [Flight(prompt, self._clock.monotonic()) for prompt in prompts]
        found = self._open_tags(flights)
        self._books.serve(flights)
        self._send(flights, found)

    def _open_tags(self, flights: Sequence[Flight]) -> dict[str, GroupTag]:
        """Write pending tags, except over tags that are there already; returns those."""
        found = self._store.read_tags([flight.prompt.uid for flight in flights])
        self._store.write_tags([flight.tag(self._clock) for flight in flights if flight.prompt.uid not in found])
        return found

    def _send(self, flights: Sequence[Flight], found: dict[str, GroupTag]) -> None:
        """Dispatch open flights, except those that have settled according to `found`."""
        self._last_move = self._clock.monotonic()
        settled = {uid: tag for uid, tag in found.items() if tag.status.terminal}
        ahead = [flight.prompt for flight in flights if flight.prompt.uid not in settled]
        if ahead:
            self._dispatch(ahead)
        self._settle(list(settled.values()))

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
        if n_groups < 1 or not (self._books.open or self._books.arrived):
            raise StoreError(f"sample({n_groups}) would never return: no group is open; submit prompts first")
        self._quiet_since = self._last_move = self._clock.monotonic()  # nobody looked until now
        self._step = step
        self._announce(on_arrival)
        while self._short(n_groups):
            self._look(self._patience())
            if self._short(n_groups) and self._clock.monotonic() >= self._next_poll:
                self._poll()
            self._announce(on_arrival)
            if self._short(n_groups):
                self._check_stall()
        chosen = self._choose(n_groups)
        self._books.claim(chosen, step)
        self._store.clear_groups([flight.prompt.uid for flight in chosen])
        return _groups(chosen)

    def collect(self) -> int:
        """Take in whatever settled, without waiting. Returns how many groups could be claimed now."""
        self._look(0.0)
        self._poll()
        return len(self._books.arrived)

    def _choose(self, n_groups: int) -> list[Flight]:
        """Which arrived groups the trainer gets. A staleness policy decides here, and only here."""
        return sorted(self._books.arrived.values(), key=lambda flight: flight.prompt.ordinal)[:n_groups]

    def _short(self, n_groups: int) -> bool:
        return len(self._books.arrived) < n_groups and bool(self._books.open)

    def _patience(self) -> float:
        until = min(self._next_poll, self._quiet_since + self._config.stall_timeout_s)
        return max(0.0, until - self._clock.monotonic())

    def _announce(self, on_arrival: OnArrival | None) -> None:
        fresh = [flight for flight in self._books.arrived.values() if not flight.announced]
        if on_arrival is None or not fresh:
            return
        for flight in fresh:
            flight.announced = True
        on_arrival(_groups(fresh))

    def _check_stall(self) -> None:
        quiet = self._clock.monotonic() - self._quiet_since
        if quiet >= self._config.stall_timeout_s:
            raise DeadlineExceeded("any group to finish", quiet, self.describe())

    # ---- done

    def clear(self, groups: Sequence[Group]) -> None:
        """After the update (and its checkpoint): the groups are trained, their rows are freed.

        Groups of a uid that this buffer never had (an earlier process claimed them) only have their rows freed.

        Raises:
            StoreError: a group is not claimed any more, or not yet.
        """
        uids = [group.prompt.uid for group in groups if self._books.knows(group.prompt.uid)]
        self._books.train(self._books.claimed_flights(uids))
        self._free(groups)

    def drop(self, groups: Sequence[Group], reason: str) -> None:
        """Claimed groups that will not be trained on, and why. Raises StoreError like `clear`."""
        self._books.drop(self._books.claimed_flights([group.prompt.uid for group in groups]), reason)
        self._free(groups)

    def _free(self, groups: Sequence[Group]) -> None:
        self._store.clear_rows([group.prompt.uid for group in groups])

    # ---- looking at the store

    def _look(self, timeout_s: float) -> None:
        """Wait for the doorbell and read the tags it names; the other groups cost nothing."""
        rung = [uid for uid in self._store.wait(timeout_s) if uid in self._books.open or uid in self._books.retired]
        if rung:
            tags = self._store.read_tags(rung)
            self._sweep(tags)
            self._settle([tag for uid, tag in tags.items() if uid in self._books.open and tag.status.terminal])

    def _poll(self) -> None:
        """The safety net: list all groups, settle lost rings, note who runs what, expire leases."""
        started = self._clock.monotonic()
        flights = list(self._books.open.values())
        tags = self._store.tags()
        now = self._clock.monotonic()
        self._next_poll = now + max(self._config.poll_s, _POLL_SHARE * (now - started))
        self._sweep(tags)
        there = [(flight, tags[flight.prompt.uid]) for flight in flights if flight.prompt.uid in tags]
        for flight, tag in there:
            self._note(flight, tag)
        self._settle([tag for _, tag in there if tag.status.terminal])
        gone = [flight for flight in flights if flight.prompt.uid not in tags]
        lost = [Failure(flight, "vanished", ("its tag is gone from the store",)) for flight in gone]
        open_still = [flight for flight, tag in there if not tag.status.terminal]
        self._give_up([*lost, *(self._overrun(flight) for flight in open_still if self._overdue(flight))])

    def _note(self, flight: Flight, tag: GroupTag) -> None:
        """Whether a worker took the group up since."""
        if tag.status is GroupStatus.RUNNING and flight.stage is Stage.PENDING:
            flight.stage, flight.owner = Stage.RUNNING, tag.owner
            flight.since = self._last_move = self._clock.monotonic()

    def _overdue(self, flight: Flight) -> bool:
        """A running group has its lease from when it was first seen running. A pending one may wait behind others as
        long as these move; when nothing moved for a whole lease, whoever should take it up is gone."""
        begun = flight.since if flight.stage is Stage.RUNNING else max(flight.since, self._last_move)
        return self._clock.monotonic() - begun >= self._config.lease_s

    def _overrun(self, flight: Flight) -> Failure:
        message = (
            f"its lease of {self._config.lease_s:.0f} s ran out while {flight.stage}, owner {flight.owner or 'none'}"
        )
        return Failure(flight, "expired", (message,))

    def _sweep(self, tags: dict[str, GroupTag]) -> None:
        """Clear what late writers left under retired uids."""
        old = {uid: tag for uid, tag in tags.items() if uid in self._books.retired}
        late = [uid for uid, tag in old.items() if tag.status.terminal]
        self._books.counts.late += len(late)
        self._store.clear_rows(late)
        self._store.clear_groups(list(old))

    # ---- settling

    def _settle(self, tags: Sequence[GroupTag]) -> None:
        """Bring in the open groups that `tags`, all terminal, say have settled."""
        if not tags:
            return
        arrived, failures = land(self._store, [(self._books.open[tag.uid], tag) for tag in tags])
        self._quiet_since = self._last_move = self._clock.monotonic()
        self._books.arrive(arrived)
        self._give_up(failures)

    def _give_up(self, failures: Sequence[Failure]) -> None:
        """Retire attempts; their groups go out again, or are dropped when they had their attempts."""
        if not failures:
            return
        again = [self._next(f) for f in failures if f.flight.prompt.attempt < self._config.max_reissues]
        self._books.replace_attempts(failures, again, self._step)
        uids = [failure.flight.prompt.uid for failure in failures]
        self._store.clear_rows(uids)
        self._store.clear_groups(uids)
        if again:
            self._send(again, self._open_tags(again))

    def _next(self, failure: Failure) -> Flight:
        old = failure.flight.prompt
        new = self._reissue(old)
        if new.base_uid != old.base_uid or new.attempt != old.attempt + 1 or self._books.knows(new.uid):
            raise StoreError(
                f"reissue({old.uid}) gave {new.uid}, attempt {new.attempt}; it must be new, with attempt + 1"
            )
        return Flight(new, self._clock.monotonic(), errors=(*failure.flight.errors, *failure.messages))

    # ---- telling

    @property
    def ready(self) -> int:
        """Arrived groups, as far as looked."""
        return len(self._books.arrived)

    def accounting(self) -> Accounting:
        """The numbers now; `balanced` holds between any two calls of this buffer."""
        return self._books.accounting()

    def describe(self) -> str:
        """State dump for messages."""
        return f"{self._books.describe()}\n  foreign tags met in the store: {self._store.quarantined_tags}"


def _groups(flights: Sequence[Flight]) -> list[Group]:
    return [flight.group for flight in flights if flight.group is not None]

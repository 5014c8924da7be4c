"""Intake: from a prompt that is sent out to a group that arrived. Invariant: an attempt that fails, expires or arrives
damaged is retired for good and its group goes out again under a new uid, so whatever a late writer still does to the
old uid is swept away and cannot mix in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from verl_core.config.schema import BufferConfig
from verl_core.errors import StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.books import Books
from verl_core.transfer.flight import Flight, Stage
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.landing import Failure, land
from verl_core.transfer.leases import Leases, ServiceClock
from verl_core.transfer.pulse import pulse_of

Dispatch = Callable[[Sequence[Prompt]], None]
Reissue = Callable[[Prompt], Prompt]
TooLate = Callable[[Sequence[Flight]], Sequence[Flight]]

_POLL_SHARE = 20  # a listing may cost 1/20 of the time between two


class Intake:
    """Args: see ReplayBuffer.

    Attributes:
        step: the last one that was worked for; servers have reached the version before it.
        journal_step: the one that what happens now belongs to: the next one as soon as a batch was claimed, for a
            process that takes over after that batch finds all else as it was when the batch was claimed.
        owed: groups dropped for failing, that nobody was asked to refill yet.
        barren: groups dropped for failing since one arrived.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        config: BufferConfig,
        dispatch: Dispatch,
        reissue: Reissue,
        books: Books,
        service: ServiceClock,
    ) -> None:
        self._store, self._config, self._dispatch, self.reissue = store, config, dispatch, reissue
        self._books, self._service, self._clock = books, service, service.clock
        self._leases = Leases(config.lease_s, service)
        self._pulse = pulse_of(store)
        self.step = self.journal_step = self.owed = self.barren = 0
        self._settled_at = self._clock.monotonic()
        self._next_poll = self._settled_at + config.poll_s

    # ---- how long to wait

    def work_for(self, step: int) -> None:
        """The trainer works for `step` now, if it did not before."""
        self.step, self.journal_step = max(self.step, step), max(self.journal_step, step)

    def begin(self, step: int) -> None:
        """The trainer waits for groups of `step` from now on; nobody looked until now."""
        self.step = step
        self.journal_step = max(self.journal_step, step)
        self.moved()

    def moved(self) -> None:
        """The time until now is nobody's stall: something settled, or the trainer's side was at work itself."""
        self._settled_at = self._clock.monotonic()
        self._leases.moved()

    @property
    def asleep(self) -> bool:
        """Whether the servers sleep."""
        return self._service.paused

    def patience(self) -> float:
        """Seconds until somebody must look at the clock or the list."""
        until = min(self._next_poll, self._settled_at + self._config.stall_timeout_s)
        return max(0.0, until - self._clock.monotonic())

    def poll_is_due(self) -> bool:
        """Whether the list was not looked at for long."""
        return self._clock.monotonic() >= self._next_poll

    def stalled_for(self) -> float:
        """Seconds since something settled when they are too many, else 0."""
        quiet = self._clock.monotonic() - self._settled_at
        return quiet if quiet >= self._config.stall_timeout_s else 0.0

    # ---- out to the workers

    def open(self, prompts: Sequence[Prompt], too_late: TooLate) -> None:
        """Open new groups and send them out with one dispatch call; see ReplayBuffer.submit.

        Args:
            too_late: of the groups that the store has already, those that are sampled anew.
        """
        flights = [self._flight(prompt) for prompt in prompts]
        found = self._find(flights)
        late = {flight.prompt.uid for flight in too_late([f for f in flights if f.prompt.uid in found])}
        flights = [self._renewed(flight) if flight.prompt.uid in late else flight for flight in flights]
        self._open_tags(flights, found)
        self._books.serve(flights)
        self._send(flights, {uid: tag for uid, tag in found.items() if uid not in late})

    def _flight(self, prompt: Prompt, errors: tuple[str, ...] = ()) -> Flight:
        return Flight(prompt, self._service.now(), max(0, self.step - 1), errors=errors)

    def _find(self, flights: Sequence[Flight]) -> dict[str, GroupTag]:
        """Tags that are there already. Whoever runs those groups may have begun when they were first opened."""
        found = self._store.read_tags([flight.prompt.uid for flight in flights])
        for flight in flights:
            if (tag := found.get(flight.prompt.uid)) is not None:
                settled = tag.manifest.min_version if tag.status.terminal else -1
                flight.oldest = min(flight.oldest, settled if settled >= 0 else max(0, tag.step - 1))
        return found

    def _renewed(self, flight: Flight) -> Flight:
        """The next attempt of which the store knows nothing; those before are retired and forgotten."""
        renewed = flight
        while renewed is flight or self._store.read_tags([renewed.prompt.uid]):
            self._books.retired.add(renewed.prompt.uid)
            self.forget([renewed.prompt.uid])
            renewed = self._flight(self._next_prompt(renewed.prompt), flight.errors)
        return renewed

    def renew(self, prompts: Sequence[Prompt]) -> None:
        """Open groups whose present attempt an earlier process finished too early to be used. They are served for the
        step of now: under the one they were first served for, a crash would not void the serving.
        """
        if not prompts:
            return
        for_now = [replace(prompt, step=max(prompt.step, self.journal_step)) for prompt in prompts]
        flights = [self._renewed(self._flight(prompt)) for prompt in for_now]
        self._open_tags(flights, {})
        self._books.serve(flights)
        self._send(flights, {})

    def forget(self, uids: Sequence[str]) -> None:
        """Clear whatever the store has under `uids`."""
        self._store.clear_groups(uids)
        self._store.clear_rows(uids)

    def _open_tags(self, flights: Sequence[Flight], found: dict[str, GroupTag]) -> None:
        """Write pending tags, except over tags that are there already."""
        self._store.write_tags([flight.tag(self._clock) for flight in flights if flight.prompt.uid not in found])

    def _send(self, flights: Sequence[Flight], found: dict[str, GroupTag]) -> None:
        """Dispatch open flights, except those that have settled according to `found`."""
        self._leases.moved()
        settled = {uid: tag for uid, tag in found.items() if tag.status.terminal}
        ahead = [flight.prompt for flight in flights if flight.prompt.uid not in settled]
        if ahead:
            self._dispatch(ahead)
        self._settle(list(settled.values()))

    # ---- looking at the store

    def look(self, timeout_s: float) -> None:
        """Wait for the doorbell and read the tags it names; the other groups cost nothing."""
        rung = [uid for uid in self._store.wait(timeout_s) if uid in self._books.open or uid in self._books.retired]
        if rung:
            tags = self._store.read_tags(rung)
            self._sweep(tags)
            self._settle([tag for uid, tag in tags.items() if uid in self._books.open and tag.status.terminal])

    def poll(self) -> None:
        """The safety net: see whether the store lives, list all groups, settle lost rings, note who runs what, expire
        leases."""
        if self._pulse is not None:
            self._pulse.check()
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
        self._give_up([*lost, *self._leases.overrun(open_still)])

    def _note(self, flight: Flight, tag: GroupTag) -> None:
        """Whether a worker took the group up since."""
        if tag.status is GroupStatus.RUNNING and flight.stage is Stage.PENDING:
            flight.stage, flight.owner, flight.since = Stage.RUNNING, tag.owner, self._service.now()
            self._leases.moved()

    def _sweep(self, tags: dict[str, GroupTag]) -> None:
        """Clear what late writers left under retired uids, and results of attempts that an earlier process made of a
        group of ours."""
        old = {uid: tag for uid, tag in tags.items() if uid in self._books.retired or self._is_orphan(tag)}
        late = [uid for uid, tag in old.items() if tag.status.terminal]
        self._books.counts.late += len(late)
        self._store.clear_rows(late)
        self._store.clear_groups(list(old))

    def _is_orphan(self, tag: GroupTag) -> bool:
        return tag.status.terminal and tag.base_uid in self._books.bases and not self._books.knows(tag.uid)

    # ---- settling

    def _settle(self, tags: Sequence[GroupTag]) -> None:
        """Bring in the open groups that `tags`, all terminal, say have settled."""
        if not tags:
            return
        arrived, failures = land(self._store, [(self._books.open[tag.uid], tag) for tag in tags])
        self.moved()
        self._books.arrive(arrived)
        if arrived:
            self.barren = 0
        self._give_up(failures)

    def _give_up(self, failures: Sequence[Failure]) -> None:
        """Retire attempts; their groups go out again, or are dropped when they had their attempts."""
        if not failures:
            return
        again = self._unknown([self._next(f) for f in failures if f.flight.prompt.attempt < self._config.max_reissues])
        self._books.replace_attempts(failures, again, self.journal_step)
        self.owed += len(failures) - len(again)
        self.barren += len(failures) - len(again)
        self.forget([failure.flight.prompt.uid for failure in failures])
        if again:
            self._open_tags(again, {})
            self._send(again, {})

    def _unknown(self, flights: Sequence[Flight]) -> list[Flight]:
        """The same groups, as attempts that no earlier process of the run made."""
        if not flights:
            return []
        found = self._store.read_tags([flight.prompt.uid for flight in flights])
        return [self._renewed(flight) if flight.prompt.uid in found else flight for flight in flights]

    def _next(self, failure: Failure) -> Flight:
        errors = (*failure.flight.errors, *failure.messages)
        return self._flight(self._next_prompt(failure.flight.prompt), errors)

    def _next_prompt(self, old: Prompt) -> Prompt:
        new = self.reissue(old)
        if new.base_uid != old.base_uid or new.attempt != old.attempt + 1 or self._books.knows(new.uid):
            raise StoreError(
                f"reissue({old.uid}) gave {new.uid}, attempt {new.attempt}; it must be new, with attempt + 1"
            )
        return new

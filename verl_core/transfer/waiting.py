"""Waiting for a sample. Invariant: every wait ends, with the groups, when nothing is open any more, or with an error
that says what is stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.books import Books
from verl_core.transfer.eviction import Eviction, Filter, evictions
from verl_core.transfer.flight import Flight, Group
from verl_core.transfer.intake import Intake
from verl_core.transfer.refills import Cap, Refill, Refills
from verl_core.transfer.staleness import StalenessPolicy

OnArrival = Callable[[list[Group]], None]
Score = Callable[[Sequence[Group]], Sequence[Group]]  # the same groups, in order, with their rewards

_DUMPED = 5
_GLANCE_S = 1.0  # between two calls of `check`, at most


@dataclass(frozen=True, slots=True)
class Rules:
    """Which groups are trained on; see ReplayBuffer."""

    policy: StalenessPolicy | None
    refill: Refill | None
    filters: tuple[Filter, ...]
    score: Score | None = None
    cap: Cap = field(default_factory=Cap)


class Waiting:
    """Args:
    submit: serves new prompts.
    free: forgets tags and rows of uids.
    describe: state dump.
    check: raises when waiting has become pointless.
    """

    def __init__(
        self,
        intake: Intake,
        books: Books,
        rules: Rules,
        submit: Callable[[Sequence[Prompt]], None],
        free: Callable[[Sequence[str]], None],
        describe: Callable[[], str],
        check: Callable[[], None],
    ) -> None:
        self._intake, self._books, self._rules = intake, books, rules
        self._submit, self._free, self._dump, self._check = submit, free, describe, check
        self._refills = Refills(rules.refill, rules.cap, rules.policy.batch_size if rules.policy else None)
        self._awaited: list[Flight] = []

    def wait(self, n_groups: int, step: int, on_arrival: OnArrival | None) -> None:
        """Until `n_groups` can be claimed at `step`, or nothing is open. Raises: see ReplayBuffer.sample."""
        self._intake.begin(step)
        self._tidy(n_groups, step, on_arrival)
        while self._short(n_groups, step):
            self._check()
            asleep = self._intake.asleep
            self._intake.look(0.0 if asleep else min(self._intake.patience(), _GLANCE_S))
            if self._short(n_groups, step) and (asleep or self._intake.poll_is_due()):
                self._intake.poll()
            self._tidy(n_groups, step, on_arrival)
            if self._short(n_groups, step):
                self._give_up_if_hopeless(asleep)
        if len(self._books.arrived) < n_groups:
            trouble = self._books.drops.trouble
            self._refills.refuse_a_small_batch(n_groups, len(self._books.arrived), step, trouble)

    def _give_up_if_hopeless(self, asleep: bool) -> None:
        if asleep:
            raise StoreError(f"waiting for groups while the servers sleep; call resume() first. {self._dump()}")
        if quiet := self._intake.stalled_for():
            raise DeadlineExceeded("any group to finish", quiet, self._dump())

    def first(self, n_groups: int) -> list[Flight]:
        """The arrived groups that are trained first; they will be."""
        chosen = self._order()[:n_groups]
        self._refills.end_batch(n_groups - len(chosen))
        return chosen

    def begin_batch(self, size: int, first: int, owed: int) -> None:
        """See ReplayBuffer.begin_batch."""
        self._refills.begin_batch(first, owed)
        self._serve_in_place(size)

    @property
    def owed(self) -> int:
        """See Refills."""
        return self._refills.owed

    def evictions(self, step: int) -> list[Eviction]:
        """Arrived groups that must not be trained on at `step`."""
        return evictions(list(self._books.arrived.values()), step - 1, self._rules.policy, self._rules.filters)

    def score(self, step: int) -> None:
        """Give arrived groups their rewards, except those that are too old anyway at `step`. Nobody looks meanwhile, so
        the seconds of scoring are no stall of the groups that are open."""
        if self._rules.score is None:
            return
        fresh = [flight for flight in self._books.arrived.values() if flight.group and not flight.group.rewards]
        stale = self._rules.policy.evict(fresh, step - 1) if self._rules.policy and fresh else []
        gone = {flight.prompt.uid for flight, _ in stale}
        fresh = [flight for flight in fresh if flight.prompt.uid not in gone]
        if fresh:
            for flight, group in zip(fresh, self._rules.score(groups_of(fresh)), strict=True):
                flight.group = group
            self._intake.moved()

    def too_late(self, found: Sequence[Flight]) -> list[Flight]:
        """Those of `found`, of an earlier process, that must be sampled anew."""
        if self._rules.policy is None or not found:
            return []
        held = [*self._books.open.values(), *self._books.arrived.values()]
        return self._rules.policy.too_late(found, held, self._intake.step - 1)

    def describe(self) -> str:
        """The policy, and whom it waits for."""
        policy = self._rules.policy
        text = f"staleness strategy {policy.name}" if policy else "no staleness strategy"
        if not self._awaited:
            return text
        uids = [flight.prompt.uid for flight in self._awaited[:_DUMPED]]
        return f"{text} waits for {len(self._awaited)} groups that would grow too old: {', '.join(uids)}"

    def _order(self) -> list[Flight]:
        arrived = list(self._books.arrived.values())
        if self._rules.policy is not None:
            return self._rules.policy.order(arrived)
        return sorted(arrived, key=lambda flight: flight.ordinal)

    def _short(self, n_groups: int, step: int) -> bool:
        """Whether there is something to wait for."""
        self._awaited = []
        if not self._books.open:
            return False
        if len(self._books.arrived) >= n_groups and self._rules.policy is not None:
            open_groups, arrived = list(self._books.open.values()), list(self._books.arrived.values())
            self._awaited = self._rules.policy.must_wait_for(open_groups, arrived, step - 1, n_groups)
        return len(self._books.arrived) < n_groups or bool(self._awaited)

    def _tidy(self, n_groups: int, step: int, on_arrival: OnArrival | None) -> None:
        """Drop what must not be trained on, serve others in its place, and announce what stays. What is served may have
        settled in an earlier process of the run, and be as old. What was scored is announced even when it is dropped
        then: a process that takes over shall neither generate nor score it again to drop it."""
        is_served = True
        while is_served:
            self.score(step)
            self._announce(on_arrival, only_scored=True)
            self._evict(step)
            is_served = self._serve_in_place(n_groups)
        self._announce(on_arrival)

    def _evict(self, step: int) -> None:
        found = self.evictions(step)
        if found:
            self._books.evict(found, step)
            rejected = sum(eviction.from_filter for eviction in found)
            self._intake.owed += len(found) - rejected
            self._refills.reject(rejected)
            self._free([eviction.flight.prompt.uid for eviction in found])
        fresh = [flight for flight in self._books.arrived.values() if not flight.passed]
        for flight in fresh:
            flight.passed = True
        self._refills.accept(len(fresh))

    def _serve_in_place(self, n_groups: int) -> bool:
        """Whether dropped groups were replaced."""
        prompts = self._refills.due(n_groups, self._intake.owed, self._intake.barren, self._dump)
        if self._rules.refill is not None:
            self._intake.owed = 0
        if prompts:
            self._submit(prompts)
        return bool(prompts)

    def _announce(self, on_arrival: OnArrival | None, only_scored: bool = False) -> None:
        fresh = [flight for flight in self._books.arrived.values() if not flight.announced]
        if only_scored:
            fresh = [flight for flight in fresh if flight.group and flight.group.rewards]
        if on_arrival is None or not fresh:
            return
        for flight in fresh:
            flight.announced = True
        on_arrival(groups_of(fresh))


def groups_of(flights: Sequence[Flight]) -> list[Group]:
    """The groups of flights that have landed."""
    return [flight.group for flight in flights if flight.group is not None]

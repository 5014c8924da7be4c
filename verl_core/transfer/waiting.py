"""Waiting for a sample. Invariant: every wait ends, with the groups, when nothing is open any more, or with an error
that says what is stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_core.errors import DeadlineExceeded, RolloutError, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.books import Books
from verl_core.transfer.eviction import Eviction, Filter, evictions
from verl_core.transfer.flight import Flight, Group
from verl_core.transfer.intake import Intake
from verl_core.transfer.staleness import StalenessPolicy

OnArrival = Callable[[list[Group]], None]
Refill = Callable[[int], Sequence[Prompt]]

_BARREN_BATCHES = 4  # so many batches of groups dropped in a row, without one that could be trained on, end the run
_DUMPED = 5
_GLANCE_S = 1.0  # between two calls of `check`, at most


@dataclass(frozen=True, slots=True)
class Rules:
    """Which groups are trained on; see ReplayBuffer."""

    policy: StalenessPolicy | None
    refill: Refill | None
    filters: tuple[Filter, ...]


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
        self._rejected = 0  # groups that filters rejected since one was trained on
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

    def _give_up_if_hopeless(self, asleep: bool) -> None:
        if asleep:
            raise StoreError(f"waiting for groups while the servers sleep; call resume() first. {self._dump()}")
        if quiet := self._intake.stalled_for():
            raise DeadlineExceeded("any group to finish", quiet, self._dump())

    def first(self, n_groups: int) -> list[Flight]:
        """The arrived groups that are trained first; they will be."""
        self._rejected = 0
        return self._order()[:n_groups]

    def evictions(self, step: int) -> list[Eviction]:
        """Arrived groups that must not be trained on at `step`."""
        return evictions(list(self._books.arrived.values()), step - 1, self._rules.policy, self._rules.filters)

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
        settled in an earlier process of the run, and be as old."""
        is_served = True
        while is_served:
            self._evict(step)
            is_served = self._serve_in_place(n_groups)
        self._announce(on_arrival)

    def _evict(self, step: int) -> None:
        found = self.evictions(step)
        if not found:
            return
        self._books.evict(found, step)
        self._intake.owed += len(found)
        self._rejected += sum(eviction.from_filter for eviction in found)
        self._free([eviction.flight.prompt.uid for eviction in found])

    def _serve_in_place(self, n_groups: int) -> bool:
        """Whether dropped groups were replaced."""
        owed, in_a_row = self._intake.owed, max(self._intake.barren, self._rejected)
        if self._rules.refill is None or not owed:
            return False
        if in_a_row >= _BARREN_BATCHES * n_groups:
            raise RolloutError(
                f"{in_a_row} groups in a row were dropped and none could be trained on. The reasons are in "
                f"journal.jsonl; mend them, then run again. {self._dump()}"
            )
        prompts = self._rules.refill(owed)
        self._intake.owed = 0
        self._submit(prompts)
        return bool(prompts)

    def _announce(self, on_arrival: OnArrival | None) -> None:
        fresh = [flight for flight in self._books.arrived.values() if not flight.announced]
        if on_arrival is None or not fresh:
            return
        for flight in fresh:
            flight.announced = True
        on_arrival(groups_of(fresh))


def groups_of(flights: Sequence[Flight]) -> list[Group]:
    """The groups of flights that have landed."""
    return [flight.group for flight in flights if flight.group is not None]

"""ReplayBuffer: the trainer's side of the store. Invariant: a served group is trained once, or dropped with a reason.

A group is open (pending, running) until it settles, then its rows are fetched at once (arrived), handed to the trainer
(claimed), and forgotten. `intake` brings groups in, a `StalenessPolicy` says which of them are trained on and when, and
only this class acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_core.config.schema import BufferConfig
from verl_core.errors import ConfigError, DeadlineExceeded, RolloutError, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.accounting import Accounting
from verl_core.transfer.books import Books
from verl_core.transfer.drops import DropSummary
from verl_core.transfer.eviction import Filter, evictions
from verl_core.transfer.flight import Clock, Flight, Group
from verl_core.transfer.intake import Dispatch, Intake, Reissue
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.leases import ServiceClock
from verl_core.transfer.ledger import Ledger
from verl_core.transfer.pressure import room
from verl_core.transfer.staleness import Load, StalenessPolicy

__all__ = ["Group", "ReplayBuffer"]

OnArrival = Callable[[list[Group]], None]
Refill = Callable[[int], Sequence[Prompt]]

_BARREN_BATCHES = 4  # so many batches of groups dropped in a row, without one that could be trained on, end the run


class ReplayBuffer:
    """Used by one thread. Several buffers may share a store as long as each has a connection (doorbell) of its own.

    Args:
        store: connection to the store.
        config: leases and limits.
        dispatch: sends prompts to the agent workers and returns at once.
        ledger: gets every event; see `Ledger`.
        reissue: the same prompt as a new attempt: attempt + 1, new uid, same base uid.
        clock: replaced in tests.
        policy: of staleness; None = groups of any age, lowest ordinals first.
        refill: gives up to so many new prompts, to be served at once in place of dropped groups; None = a dropped
            group makes the sample smaller.
        filters: reject arrived groups for other reasons than their age.

    Raises:
        ConfigError: a batch could never come together within the limits.
    """

    def __init__(
        self,
        store: TrajectoryStore,
        config: BufferConfig,
        dispatch: Dispatch,
        ledger: Ledger,
        reissue: Reissue,
        clock: Clock | None = None,
        policy: StalenessPolicy | None = None,
        refill: Refill | None = None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._store, self._config = store, config
        self._policy, self._refill, self._filters = policy, refill, tuple(filters)
        self._clock = clock or Clock()
        self._service = ServiceClock(self._clock)
        self._books = Books(ledger, self._service)
        self._intake = Intake(store, config, dispatch, reissue, self._books, self._clock, self._service)
        self._rejected = 0  # groups that filters rejected since one was claimed
        self._refuse_a_deadlock()

    def _refuse_a_deadlock(self) -> None:
        if self._policy is None:
            return
        size, limit = self._policy.batch_size, self._config.max_groups
        if limit is not None and limit < size:
            raise ConfigError(
                f"trainer.v1.buffer.max_groups={limit} is less than data.train_batch_size={size}: no batch could ever "
                f"come together. Raise it to {size} or more"
            )
        if (admitted := self._policy.admit(Load())) < size:
            raise ConfigError(
                f"the staleness policy {self._policy.name} admits {admitted} groups, fewer than "
                f"data.train_batch_size={size}: no batch could ever come together. Raise "
                "trainer.v1.sampler.max_off_policy_threshold"
            )

    # ---- in

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """Open groups and send them out with one dispatch call.

        A uid that is in the store already was served by an earlier process of this run: what it left is used. A settled
        group arrives without being generated again; an open one is dispatched again, which its worker ignores if it
        still has it.

        Args:
            prompts: their `step` is the one that the trainer works for now, so the servers have reached version
                `step` - 1: staleness bounds are kept by it.

        Raises:
            StoreError: this buffer had the group before; it would be trained twice.
        """
        uids, bases = [prompt.uid for prompt in prompts], [prompt.base_uid for prompt in prompts]
        known = [prompt.uid for prompt in prompts if prompt.base_uid in self._books.bases]
        if known or len(set(bases)) < len(bases):
            raise StoreError(f"groups submitted twice: {known or uids}; every attempt needs a new uid")
        if prompts:
            self._intake.step = max(self._intake.step, min(prompt.step for prompt in prompts))
        self._intake.open(prompts)

    def adopt(self, groups: Sequence[Group]) -> None:
        """Take groups that an earlier process of this run finished and spooled: they have arrived, are never dispatched
        and not announced again.

        Raises:
            StoreError: this buffer has one of them.
        """
        bases = [group.prompt.base_uid for group in groups]
        known = [base for base in bases if base in self._books.bases]
        if known or len(set(bases)) < len(bases):
            raise StoreError(f"groups adopted that are here, or twice: {known or bases}; adopt before you submit")
        flights = []
        for group in groups:
            flight = Flight(group.prompt, self._service.now(), max(0, group.prompt.step - 1), announced=True)
            flight.errors = group.errors
            flight.land(group)
            flights.append(flight)
        self._books.adopt(flights)

    def room(self) -> int:
        """How many groups may be submitted now, by staleness policy, max_groups and max_megabytes; NO_BOUND = any
        number."""
        return room(self._policy, self._config, len(self._books.open), list(self._books.arrived.values()))

    def pause(self) -> None:
        """The servers sleep: leases stand still until `resume`, and nothing is waited for. Idempotent."""
        self._service.pause()

    def resume(self) -> None:
        """The servers work again. Idempotent."""
        self._service.resume()

    # ---- out

    def sample(self, n_groups: int, step: int, on_arrival: OnArrival | None = None) -> list[Group]:
        """Wait for `n_groups` groups that may be trained on, and claim them; fewer only when no group is open any more
        and `refill` gave none.

        Args:
            step: global step that claims them; it starts from the weights of version `step` - 1.
            on_arrival: called with each batch of arrivals, every group once, while others are still being generated.

        Returns:
            The groups that the policy puts first, by ordinal.

        Raises:
            StoreError: nothing was submitted, or the servers sleep.
            DeadlineExceeded: nothing settled for `stall_timeout_s` (says which groups are stuck, and where), or the
                store died.
            RolloutError: groups failed, or were rejected by a filter, one after the other without end.
        """
        self.wait_for(n_groups, step, on_arrival)
        arrived = list(self._books.arrived.values())
        first = self._policy.order(arrived) if self._policy else sorted(arrived, key=lambda flight: flight.ordinal)
        chosen = sorted(first[:n_groups], key=lambda flight: flight.ordinal)
        self._books.claim(chosen, step)
        self._rejected = 0
        self._store.clear_groups([flight.prompt.uid for flight in chosen])
        return _groups(chosen)

    def wait_for(self, n_groups: int, step: int, on_arrival: OnArrival | None = None) -> int:
        """Like `sample`, without claiming anything: returns how many groups could be claimed at `step`."""
        if n_groups < 1 or not (self._books.open or self._books.arrived):
            raise StoreError(f"sample({n_groups}) would never return: no group is open; submit prompts first")
        self._intake.step = step
        self._intake.settled_at = self._clock.monotonic()  # nobody looked until now
        self._intake.moved()
        self._tidy(n_groups, step, on_arrival)
        while self._short(n_groups, step):
            self._refuse_sleep()
            self._intake.look(self._patience())
            if self._short(n_groups, step) and self._clock.monotonic() >= self._intake.next_poll:
                self._intake.poll()
            self._tidy(n_groups, step, on_arrival)
            if self._short(n_groups, step):
                self._check_stall()
        return len(self._books.arrived)

    def collect(self) -> int:
        """Take in whatever settled, without waiting. Returns how many groups have arrived."""
        self._intake.look(0.0)
        self._intake.poll()
        return len(self._books.arrived)

    def sampleable(self, step: int) -> int:
        """How many groups could be claimed at `step`, without waiting; takes in what the doorbell told of."""
        self._intake.look(0.0)
        if self._clock.monotonic() >= self._intake.next_poll:
            self._intake.poll()
        arrived = list(self._books.arrived.values())
        return len(arrived) - len(evictions(arrived, step - 1, self._policy, self._filters))

    def arrived_groups(self) -> list[Group]:
        """Groups that arrived and were not claimed, by ordinal."""
        return _groups(sorted(self._books.arrived.values(), key=lambda flight: flight.ordinal))

    def unclaimed(self) -> list[Prompt]:
        """Prompts of all groups that are open or arrived and have no outcome, by ordinal."""
        flights = [*self._books.open.values(), *self._books.arrived.values()]
        return [flight.prompt for flight in sorted(flights, key=lambda flight: flight.ordinal)]

    # ---- one round of waiting

    def _tidy(self, n_groups: int, step: int, on_arrival: OnArrival | None) -> None:
        """Drop what must not be trained on, serve others in its place, and announce what stays."""
        found = evictions(list(self._books.arrived.values()), step - 1, self._policy, self._filters)
        self._books.evict(found, step)
        uids = [eviction.flight.prompt.uid for eviction in found]
        self._store.clear_groups(uids)
        self._store.clear_rows(uids)
        self._rejected += sum(eviction.from_filter for eviction in found)
        self._intake.owed += len(found)
        self._serve_in_place(n_groups)
        self._announce(on_arrival)

    def _serve_in_place(self, n_groups: int) -> None:
        if self._refill is None or not self._intake.owed:
            return
        if max(self._intake.barren, self._rejected) >= _BARREN_BATCHES * n_groups:
            raise RolloutError(
                f"{max(self._intake.barren, self._rejected)} groups in a row were dropped and none could be trained "
                f"on; see the reasons in journal.jsonl. {self.describe()}"
            )
        prompts = self._refill(self._intake.owed)
        self._intake.owed = 0
        self.submit(prompts)

    def _announce(self, on_arrival: OnArrival | None) -> None:
        fresh = [flight for flight in self._books.arrived.values() if not flight.announced]
        if on_arrival is None or not fresh:
            return
        for flight in fresh:
            flight.announced = True
        on_arrival(_groups(fresh))

    def _short(self, n_groups: int, step: int) -> bool:
        """Whether there is something to wait for."""
        open_groups, arrived = self._books.open, self._books.arrived
        if not open_groups:
            return False
        return len(arrived) < n_groups or bool(self._awaited(n_groups, step))

    def _awaited(self, n_groups: int, step: int) -> list[Flight]:
        if self._policy is None:
            return []
        open_groups, arrived = list(self._books.open.values()), list(self._books.arrived.values())
        return self._policy.must_wait_for(open_groups, arrived, step - 1, n_groups)

    def _patience(self) -> float:
        until = min(self._intake.next_poll, self._intake.settled_at + self._config.stall_timeout_s)
        return max(0.0, until - self._clock.monotonic())

    def _refuse_sleep(self) -> None:
        if self._service.paused:
            raise StoreError(f"waiting for groups while the servers sleep; call resume() first. {self.describe()}")

    def _check_stall(self) -> None:
        quiet = self._clock.monotonic() - self._intake.settled_at
        if quiet >= self._config.stall_timeout_s:
            raise DeadlineExceeded("any group to finish", quiet, self.describe())

    # ---- done

    def clear(self, groups: Sequence[Group]) -> None:
        """The groups are trained, or what is trained on is durable elsewhere: their rows are freed.

        Groups of a uid that this buffer never had (an earlier process claimed them) only have their rows freed.

        Raises:
            StoreError: a group is not claimed any more, or not yet.
        """
        uids = [group.prompt.uid for group in groups if self._books.knows(group.prompt.uid)]
        self._books.train(self._books.claimed_flights(uids))
        self._store.clear_rows([group.prompt.uid for group in groups])

    def drop(self, groups: Sequence[Group], reason: str) -> None:
        """Claimed groups that will not be trained on, and why. Raises StoreError like `clear`."""
        self._books.drop(self._books.claimed_flights([group.prompt.uid for group in groups]), reason)
        self._store.clear_rows([group.prompt.uid for group in groups])

    def abandon(self, reason: str) -> int:
        """Drop every group that is open or waits to be trained on: the run is over. Returns how many."""
        uids = [flight.prompt.uid for flight in self._books.abandon(reason, self._intake.step + 1)]
        self._store.clear_groups(uids)
        self._store.clear_rows(uids)
        return len(uids)

    # ---- telling

    @property
    def ready(self) -> int:
        """Arrived groups, as far as looked."""
        return len(self._books.arrived)

    def drops(self) -> DropSummary:
        """Who was dropped since the last call of this."""
        return self._books.drops.summary()

    def accounting(self) -> Accounting:
        """The numbers now; `balanced` holds between any two calls of this buffer."""
        return self._books.accounting()

    def describe(self) -> str:
        """State dump for messages."""
        policy = f"staleness policy {self._policy.name}" if self._policy else "no staleness policy"
        return f"{self._books.describe()}\n  {policy}; foreign tags met in the store: {self._store.quarantined_tags}"


def _groups(flights: Sequence[Flight]) -> list[Group]:
    return [flight.group for flight in flights if flight.group is not None]

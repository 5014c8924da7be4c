"""ReplayBuffer: the trainer's side of the store. Invariant: a served group is trained once, or dropped with a reason.

A group is open (pending, running) until it settles, then its rows are fetched at once (arrived), handed to the trainer
(claimed), and forgotten. `intake` brings groups in, a `StalenessPolicy` says which of them are trained on and when, and
only this class acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_core.config.schema import BufferConfig
from verl_core.errors import StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.accounting import Accounting
from verl_core.transfer.books import Books
from verl_core.transfer.drops import DropSummary
from verl_core.transfer.eviction import Filter
from verl_core.transfer.flight import Clock, Flight, Group
from verl_core.transfer.intake import Dispatch, Intake, Reissue
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.leases import ServiceClock
from verl_core.transfer.ledger import Ledger
from verl_core.transfer.pressure import refuse_a_deadlock, room
from verl_core.transfer.refills import Cap, Refill
from verl_core.transfer.staleness import StalenessPolicy
from verl_core.transfer.waiting import OnArrival, Rules, Score, Waiting, groups_of

__all__ = ["Group", "ReplayBuffer"]


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
        score: gives arrived groups their rewards, once each, before the filters see them; None = they have none.
        kept: takes the group that an earlier process of this run finished and spooled for a prompt that `refill` gave;
            None when there is none.
        cap: of what is refilled for the filters.
        check: called at least once a second while a sample is waited for, except while `score` works, which has a
            deadline of its own; raises when waiting has become pointless.

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
        check: Callable[[], None] = lambda: None,
        score: Score | None = None,
        kept: Callable[[Prompt], Group | None] = lambda prompt: None,
        cap: Cap | None = None,
    ) -> None:
        refuse_a_deadlock(policy, config)
        self._store, self._config, self._policy, self._kept = store, config, policy, kept
        self._service = ServiceClock(clock or Clock())
        self._books = Books(ledger, self._service)
        self._intake = Intake(store, config, dispatch, reissue, self._books, self._service)
        rules = Rules(policy, refill, tuple(filters), score, cap or Cap())
        self._waiting = Waiting(
            self._intake, self._books, rules, self._serve, self._intake.forget, self.describe, check
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
            self._intake.work_for(min(prompt.step for prompt in prompts))
        self._intake.open(prompts, self._waiting.too_late)

    def adopt(self, groups: Sequence[Group], step: int | None = None) -> None:
        """Take groups that an earlier process of this run finished and spooled: they have arrived, are never dispatched
        and not announced again, except where a sample could not be scored: such a group is scored anew. Where adopting
        would break the bound of `wait`, the prompt is sampled anew instead.

        Args:
            step: that the trainer works for now; None = the last one it waited for.

        Raises:
            StoreError: this buffer has one of them.
        """
        bases = [group.prompt.base_uid for group in groups]
        known = [base for base in bases if base in self._books.bases]
        if known or len(set(bases)) < len(bases):
            raise StoreError(f"groups adopted that are here, or twice: {known or bases}; adopt before you submit")
        self._intake.work_for(step or 0)
        flights = [Flight.adopted(group, self._service.now()) for group in groups]
        late = {flight.prompt.uid for flight in self._waiting.too_late(flights)}
        self._books.adopt([flight for flight in flights if flight.prompt.uid not in late])
        self._intake.renew([flight.prompt for flight in flights if flight.prompt.uid in late])

    def begin_batch(self, size: int, first: int, owed: int) -> None:
        """What is sampled for the next batch was submitted: serve what is owed to it, as far as `cap` goes. Without
        this call a batch has a size of its own to begin with, and is owed what the one before left.

        Args:
            size: groups of the batch.
            first: groups submitted for it; fewer than `size` where others were served ahead and the run ends.
            owed: `owed` of the batch before, of whatever process.
        """
        self._waiting.begin_batch(size, first, owed)

    @property
    def owed(self) -> int:
        """Groups that filters rejected, `cap` left without others in their place, and no batch was smaller for."""
        return self._waiting.owed

    def _serve(self, prompts: Sequence[Prompt]) -> None:
        """Prompts in the place of dropped groups: those that an earlier process finished have arrived."""
        found = {prompt.uid: self._kept(prompt) for prompt in prompts}
        self.adopt([group for group in found.values() if group is not None])
        if fresh := [prompt for prompt in prompts if found[prompt.uid] is None]:
            self.submit(fresh)

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
            RolloutError: groups failed, or were rejected by a filter, one after the other without end; or `cap` is
                reached and what passed the filters is not enough.
        """
        self.wait_for(n_groups, step, on_arrival)
        chosen = sorted(self._waiting.first(n_groups), key=lambda flight: flight.ordinal)
        self._books.claim(chosen, step)
        self._intake.journal_step = step + 1
        self._store.clear_groups([flight.prompt.uid for flight in chosen])
        return groups_of(chosen)

    def wait_for(self, n_groups: int, step: int, on_arrival: OnArrival | None = None) -> int:
        """Like `sample`, without claiming anything: returns how many groups could be claimed at `step`."""
        if n_groups < 1 or not (self._books.open or self._books.arrived):
            raise StoreError(f"sample({n_groups}) would never return: no group is open; submit prompts first")
        self._waiting.wait(n_groups, step, on_arrival)
        return len(self._books.arrived)

    def collect(self) -> int:
        """Take in whatever settled, without waiting. Returns how many groups have arrived."""
        self._intake.look(0.0)
        self._intake.poll()
        return len(self._books.arrived)

    def sampleable(self, step: int) -> int:
        """How many groups could be claimed at `step`, without waiting; takes in what the doorbell told of."""
        self._intake.look(0.0)
        if self._intake.poll_is_due():
            self._intake.poll()
        self._waiting.score(step)
        return len(self._books.arrived) - len(self._waiting.evictions(step))

    def arrived_groups(self) -> list[Group]:
        """Groups that arrived and were not claimed, by ordinal."""
        return groups_of(sorted(self._books.arrived.values(), key=lambda flight: flight.ordinal))

    def unclaimed(self) -> list[Prompt]:
        """Prompts of all groups that are open or arrived and have no outcome, by ordinal."""
        flights = [*self._books.open.values(), *self._books.arrived.values()]
        return [flight.prompt for flight in sorted(flights, key=lambda flight: flight.ordinal)]

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
        uids = [flight.prompt.uid for flight in self._books.abandon(reason, self._intake.journal_step)]
        self._intake.forget(uids)
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
        foreign = f"foreign tags met in the store: {self._store.quarantined_tags}"
        trouble = self._books.drops.trouble
        return f"{self._books.describe()}\n  {self._waiting.describe()}; {foreign}{trouble and '; '}{trouble}"

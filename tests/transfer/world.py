"""A world in which time is a number: a memory store whose clock turns only while somebody waits."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.transfer.build import prompt_of, reissue
from verl_core.config.schema import BufferConfig
from verl_core.trajectory import Prompt
from verl_core.transfer.eviction import Filter
from verl_core.transfer.flight import Clock
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import StalenessPolicy
from verl_core.transfer.tq_store import TransferQueueStore


class TimedStore(MemoryStore):
    """`wait` runs what is due on the agenda instead of sleeping. `deaf` loses every ring."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.deaf = False
        self.listings = 0
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), action))

    def pass_time(self, seconds: float) -> None:
        """Run everything due within `seconds`."""
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = until

    def wait(self, timeout_s: float) -> list[str]:
        until = self.now + timeout_s
        while not self._rung and self._agenda and self._agenda[0][0] <= until:
            self.pass_time(self._agenda[0][0] - self.now)
        if not self._rung:
            self.now = until
        rung = super().wait(0.0)
        return [] if self.deaf else rung

    def tags(self) -> dict[str, Any]:  # type: ignore[override]
        self.listings += 1
        return super().tags()


class TimedQueue:
    """A real TransferQueueStore under a clock that is a number: a wait in which nothing rings for a moment has passed
    in full."""

    def __init__(self, store: TransferQueueStore) -> None:
        self._store = store
        self.now = 1000.0
        self.deaf = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, timeout_s: float) -> list[str]:
        rung: list[str] = self._store.wait(min(timeout_s, 0.05))
        if not rung:
            self.now += timeout_s
        return [] if self.deaf else rung


class Book:
    """Ledger that remembers, and follows base uids by itself."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
        self.by_base: dict[str, Counter[str]] = {}

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        self.events.append((event, tuple(uids), detail))
        for base in detail["base_uids"]:
            self.by_base.setdefault(base, Counter())[event] += 1

    def of(self, event: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        return [(uids, detail) for kind, uids, detail in self.events if kind == event]

    def settled(self, event: str) -> set[str]:
        return {base for base, counts in self.by_base.items() if counts[event]}


class World:
    """Store, ledger, buffer, and the list of everything that was dispatched.

    Args:
        policy: of the buffer.
        first_refill: ordinal of the first prompt that takes a dropped group's place; None = nothing does.
        filters: of the buffer.
        store: None = a new TimedStore.
    """

    def __init__(
        self,
        policy: StalenessPolicy | None = None,
        first_refill: int | None = None,
        filters: Sequence[Filter] = (),
        store: TimedStore | TimedQueue | None = None,
        **settings: Any,
    ) -> None:
        self.store: Any = store or TimedStore()
        self.book = Book()
        self.dispatched: list[list[Prompt]] = []
        self.policy, self.filters = policy, filters
        self.refilled: list[int] = []
        self.step = 1
        self.on_dispatch: Callable[[Prompt], object] = lambda prompt: None
        self._first_refill = first_refill
        self.config = BufferConfig(**{"lease_s": 60.0, "stall_timeout_s": 300.0, "max_reissues": 2, **settings})
        self.buffer = self.new_buffer()

    def new_buffer(self) -> ReplayBuffer:
        clock = Clock(lambda: self.store.now, lambda: self.store.now)
        refill = None if self._first_refill is None else self._refill
        return ReplayBuffer(
            self.store, self.config, self._dispatch, self.book, reissue, clock, self.policy, refill, self.filters
        )

    def _refill(self, count: int) -> list[Prompt]:
        start = (self._first_refill or 0) + sum(self.refilled)
        self.refilled.append(count)
        return [prompt_of(ordinal, step=self.step) for ordinal in range(start, start + count)]

    def _dispatch(self, prompts: Sequence[Prompt]) -> None:
        self.dispatched.append(list(prompts))
        for prompt in prompts:
            self.on_dispatch(prompt)

    def check(self) -> None:
        """The law, against the ledger's own count."""
        account = self.buffer.accounting()
        served, trained, dropped = (self.book.settled(event) for event in ("served", "trained", "dropped"))
        served |= self.book.settled("adopted")
        assert account.balanced
        assert account.served == len(served)
        assert account.trained == len(trained)
        assert sum(account.dropped.values()) == len(dropped)
        assert account.in_flight == len(served - trained - dropped)
        assert not trained & dropped
        for counts in self.book.by_base.values():
            assert counts["served"] + counts["adopted"] == 1
            assert counts["trained"] + counts["dropped"] <= 1
            assert counts["claimed"] <= 1

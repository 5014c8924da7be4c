"""A small trainer around the replay buffer: what is durable, what a crash takes, and the journal that outlives both.

It does what `verl_core.trainer.stages.rollout` and the feed do, in the same order, on plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.transfer.build import prompt_of, reissue
from verl_core.config.schema import BufferConfig
from verl_core.errors import RolloutError
from verl_core.record.accounting import Accounting, account
from verl_core.record.journal import Event
from verl_core.trajectory import Prompt, Reward
from verl_core.transfer.constant_groups import constant_groups
from verl_core.transfer.flight import Clock, Group
from verl_core.transfer.refills import Cap
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import StalenessPolicy


def scored(group: Group, is_constant: bool) -> Group:
    """The group with rewards 1, or 0 and 1 in turn."""
    rewards = [Reward(row.key, float(is_constant or row.session % 2)) for row in group.trajectories]
    return replace(group, rewards=tuple(rewards))


DEEDS = ("claim", "keep the rest", "note what is open", "publish the trajectories", "clear", "record", "mark")


@dataclass(frozen=True)
class Serving:
    """Where serving stands after a rollout."""

    next: int = 0
    open: tuple[int, ...] = ()
    replaced: int = 0
    owed: int = 0


@dataclass
class Disk:
    """Survives every crash. Keys are steps."""

    spool: dict[int, dict[str, Group]] = field(default_factory=dict)
    serving: dict[int, Serving] = field(default_factory=lambda: {0: Serving()})
    trajectories: dict[int, list[Group]] = field(default_factory=dict)
    record: dict[int, list[str]] = field(default_factory=dict)
    journal: list[Event] = field(default_factory=list)


class Journaled:
    """The ledger: everything but `trained`, which follows the step's record."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        if event != "trained":
            self.append(event, uids, **detail)

    def append(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        self._disk.journal.append(Event(len(self._disk.journal) + 1, 0.0, event, tuple(uids), detail))


class Crash(Exception):
    """The process died here."""


class TrainerModel:
    """One run over many lives. `version` is what the servers have; they never fall behind a step's record."""

    def __init__(
        self,
        store: Any,
        policy: StalenessPolicy | None,
        config: BufferConfig,
        size: int,
        ahead: int,
        cap: Cap | None = None,
        total: int | None = None,
    ) -> None:
        self.store, self.policy, self.config, self.size, self.ahead = store, policy, config, size, ahead
        self.cap, self.n = cap, 1 if cap is None else 2  # None = nothing is filtered
        self.total = total  # steps; None = no end
        self.is_constant: Callable[[int], bool] = lambda ordinal: ordinal % 3 == 0
        self.disk = Disk()
        self.ledger = Journaled(self.disk)
        self.sent: dict[str, Prompt] = {}  # every attempt that workers know of
        self.begun: dict[str, int] = {}  # weight version when they got it
        self.staleness: list[int] = []
        self.version = 0
        self.live()

    # ---- lives

    def live(self) -> None:
        """A fresh process opens the run."""
        if self.disk.journal:
            done = max(self.disk.record, default=0)
            self.ledger.append("resumed", (), from_step=done, rolled_out=max([done, *self.disk.trajectories]))
        self.version = max(self.disk.record, default=0)
        clock = Clock(lambda: self.store.now, lambda: self.store.now)
        filtered = self.cap is not None
        self.buffer = ReplayBuffer(
            self.store,
            self.config,
            self.dispatch,
            self.ledger,
            reissue,
            clock,
            self.policy,
            self.refill if self.policy is not None or filtered else None,
            [constant_groups("score")] if filtered else [],
            score=self.score if filtered else None,
            kept=lambda prompt: self.settled.pop(prompt.base_uid, None),
            cap=self.cap,
        )
        self.step = max([0, *self.disk.trajectories]) + 1  # whose rollout is next
        serving = self.disk.serving[self.step - 1]
        self.next, self.replaced, self.again = serving.next, serving.replaced, list(serving.open)
        self.owed, self.served_for = serving.owed, 0
        self.settled = dict(self.disk.spool.get(self.step, {}))
        self.dropped_before = sum(self.accounts().dropped.values())

    def crash(self, empties: bool) -> None:
        """The trainer dies. With `empties` the store and the workers die too."""
        if empties:
            self.store.reset()
            self.sent.clear()
            self.begun.clear()
        self.live()

    # ---- filtering

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Prompts whose ordinal is constant are always solved."""
        for group in groups:
            assert not self.is_kept(group), "scored again"
        return [scored(group, self.is_constant(group.prompt.ordinal)) for group in groups]

    def is_kept(self, group: Group) -> bool:
        kept = self.disk.spool.get(self.step, {}).get(group.prompt.base_uid)
        return kept is not None and kept.prompt.uid == group.prompt.uid

    # ---- serving

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            self.sent[prompt.uid] = prompt
            self.begun.setdefault(prompt.uid, self.version)  # a worker that still has it goes on

    def refill(self, count: int) -> list[Prompt]:
        self.replaced += count
        return self.new(count)

    def new(self, count: int) -> list[Prompt]:
        self.next += count
        return [prompt_of(ordinal, n=self.n, step=self.step) for ordinal in range(self.next - count, self.next)]

    def top_up(self) -> None:
        again, self.again = self.again, []
        self.serve([prompt_of(ordinal, n=self.n, step=self.step) for ordinal in again])
        count = self.groups(self.step) + self.replaced - self.next
        if self.policy is not None:
            count = min(count, self.buffer.room())
        if count > 0:
            self.serve(self.new(count))
        if self.served_for != self.step and not self.is_over:
            self.served_for = self.step
            first = self.groups(self.step) - (self.groups(self.step - 1) if self.step > 1 else 0)
            self.buffer.begin_batch(self.size, first, self.owed)

    def groups(self, step: int) -> int:
        """Served by then, without those in the place of others."""
        batches = step + self.ahead
        return self.size * (batches if self.total is None else min(batches, self.total))

    @property
    def is_over(self) -> bool:
        return self.total is not None and self.step > self.total

    def serve(self, prompts: Sequence[Prompt]) -> None:
        fresh = [prompt for prompt in prompts if prompt.base_uid not in self.settled]
        self.buffer.adopt([self.settled.pop(p.base_uid) for p in prompts if p.base_uid in self.settled], self.step)
        if fresh:
            self.buffer.submit(fresh)

    # ---- a step

    def rollout(self, dies_before: str = "") -> None:
        """Sample a batch and keep it. Raises Crash before the deed named, RolloutError when there is no batch."""
        step = self.step
        groups = self.buffer.sample(self.size, step, self.keeper(step))
        if not groups:
            raise RolloutError("no group finished")
        self.staleness += [step - 1 - group.min_version for group in groups]
        self.deed("keep the rest", dies_before)
        self.keeper(step + 1)(self.buffer.arrived_groups())
        self.deed("note what is open", dies_before)
        if not self.ahead:
            self.settled.clear()
        unclaimed = tuple(prompt.ordinal for prompt in self.buffer.unclaimed())
        self.owed = self.buffer.owed
        self.disk.serving[step] = Serving(self.next, unclaimed, self.replaced, self.owed)
        self.deed("publish the trajectories", dies_before)
        self.disk.trajectories[step] = groups
        self.step = step + 1
        self.deed("clear", dies_before)
        self.buffer.clear(groups)

    def update(self, dies_before: str = "") -> None:
        """Train on the oldest kept batch that has no record; then publish the weights."""
        step = max(self.disk.record, default=0) + 1
        uids = [group.prompt.uid for group in self.disk.trajectories[step]]
        bases = [group.prompt.base_uid for group in self.disk.trajectories[step]]
        self.deed("record", dies_before)
        self.disk.record[step] = bases
        self.deed("mark", dies_before)
        self.ledger.append("trained", uids, base_uids=bases, step=step)
        self.version = step

    @staticmethod
    def deed(name: str, dies_before: str) -> None:
        if name == dies_before:
            raise Crash(name)

    def keeper(self, step: int) -> Any:
        spool = self.disk.spool.setdefault(step, {})
        return lambda groups: spool.update({group.prompt.base_uid: group for group in groups})

    @property
    def untrained(self) -> list[Group]:
        """Groups of steps whose trajectories are kept and whose update is not recorded."""
        return [
            group for step, groups in self.disk.trajectories.items() if step not in self.disk.record for group in groups
        ]

    # ---- the law

    def accounts(self) -> Accounting:
        return account(self.disk.journal)

    def check(self) -> None:
        """The journal, the buffer and the disk tell one story."""
        accounts, buffer = self.accounts(), self.buffer.accounting()
        trained = [base for bases in self.disk.record.values() for base in bases]
        assert len(set(trained)) == len(trained)
        assert accounts.exact, accounts
        dropped = sum(accounts.dropped.values())
        assert accounts.served == accounts.trained + dropped + accounts.in_flight
        assert accounts.trained == len(trained)
        assert buffer.balanced
        assert dropped == self.dropped_before + sum(buffer.dropped.values())
        claimed = sum(group.prompt.uid in self.buffer._books.claimed for group in self.untrained)
        assert accounts.in_flight == len(self.again) + buffer.in_flight - claimed + len(self.untrained)

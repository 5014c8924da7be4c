"""The accounts against a slow model of a run: it keeps the truth in sets and forgets by copying its checkpoint back."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.record.accounting import Accounting, account, accounting
from verl_core.record.journal import Event, Journal
from verl_core.record.rundir import RunDir


def history(*lines: tuple[str, str, dict[str, Any]]) -> list[Event]:
    """Events from (kind, space-separated uids, detail)."""
    return [Event(n, 0.0, kind, tuple(uids.split()), detail) for n, (kind, uids, detail) in enumerate(lines, start=1)]


def numbers(result: Accounting) -> tuple[int, int, int, int, int, int]:
    dropped = sum(result.dropped.values())
    return result.served, result.trained, dropped, result.in_flight, result.trained_twice, result.lost


def test_a_plain_step() -> None:
    result = account(
        history(
            ("served", "a b c d", {"step": 1}),
            ("failed", "c", {}),
            ("reissued", "c2", {"base_uids": ["c"]}),
            ("finished", "a b c2", {}),
            ("claimed", "a b c2", {"step": 1}),
            ("dropped", "b", {"step": 1, "reason": "reward: timeout"}),
            ("trained", "a c2", {"step": 1}),
        )
    )
    # Four rows: a and c (through its second attempt) are trained, b is dropped, d is still running.
    assert numbers(result) == (4, 2, 1, 1, 0, 0)
    assert result.dropped == {"reward": 1}
    assert result.exact


def test_two_attempts_of_one_row_in_the_weights_are_seen() -> None:
    result = account(
        history(
            ("served", "a", {"step": 1}),
            ("reissued", "a2", {"base_uids": ["a"]}),
            ("trained", "a a2", {"step": 1}),
        )
    )
    assert (result.trained, result.trained_twice, result.twice_uids, result.exact) == (1, 1, ("a",), False)


def test_the_same_mark_written_again_is_one_mark() -> None:
    trained = ("trained", "a", {"step": 1})
    assert account(history(("served", "a", {"step": 1}), trained, trained)).exact


def test_an_abandoned_step_does_not_count_and_its_repetition_does() -> None:
    start = [
        ("served", "a", {"step": 1}),
        ("trained", "a", {"step": 1}),
        ("served", "b", {"step": 2}),
        ("claimed", "b", {"step": 2}),
        ("trained", "b", {"step": 2}),
    ]
    crashed = [*start, ("resumed", "", {"from_step": 1, "position": 2})]
    assert numbers(account(history(*crashed))) == (1, 1, 0, 0, 0, 0)
    again = [*crashed, ("served", "b", {"step": 2}), ("trained", "b", {"step": 2})]
    assert numbers(account(history(*again))) == (2, 2, 0, 0, 0, 0)
    # Had the run gone on from step 2's weights and served b once more, b would be in the weights twice.
    twice = [*start, ("resumed", "", {"from_step": 2, "position": 5}), ("trained", "b", {"step": 3})]
    assert account(history(*twice)).trained_twice == 1


def test_a_crash_between_checkpoint_and_mark_still_counts_the_step() -> None:
    lines = [
        ("served", "a b", {"step": 1}),
        ("claimed", "a b", {"step": 1}),
        ("dropped", "b", {"step": 1, "reason": "r"}),
    ]
    result = account(history(*lines, ("resumed", "", {"from_step": 1, "position": 3})))
    assert numbers(result) == (2, 1, 1, 0, 0, 0)


def test_a_step_whose_trajectories_are_kept_keeps_its_claims_and_drops() -> None:
    """Three groups, served ahead by step 1; step 2 claims one and drops one; the process dies before the update."""
    lines = [
        ("served", "a b c", {"step": 1}),
        ("trained", "a", {"step": 1}),
        ("served", "d", {"step": 2}),
        ("claimed", "b", {"step": 2}),
        ("dropped", "c", {"step": 2, "reason": "stale: 2 versions, threshold 1"}),
    ]
    kept = account(history(*lines, ("resumed", "", {"from_step": 1, "position": None, "rolled_out": 2})))
    assert numbers(kept) == (4, 1, 1, 2, 0, 0)  # b is on its way into the weights, d runs
    redone = account(history(*lines, ("resumed", "", {"from_step": 1, "position": None, "rolled_out": 1})))
    assert numbers(redone) == (3, 1, 0, 2, 0, 0)  # b and c are open again, d was never served
    trained = ("trained", "b", {"step": 2})
    assert numbers(account(history(*lines, ("resumed", "", {"from_step": 1, "rolled_out": 2}), trained)))[1] == 2


def test_a_group_that_is_served_again_after_a_crash_is_as_old_as_before() -> None:
    served, crash = ("served", "a", {"step": 1}), ("resumed", "", {"from_step": 2, "position": None})
    assert numbers(account(history(served, crash, ("served", "a", {"step": 3}), crash))) == (1, 0, 0, 1, 0, 0)


def test_a_forgotten_group_is_lost_once_the_run_ended_or_its_step_was_overtaken() -> None:
    served = ("served", "a b", {"step": 1})
    trained = ("trained", "a", {"step": 1})
    assert numbers(account(history(served, trained))) == (2, 1, 0, 1, 0, 0)
    ended = account(history(served, trained, ("ended", "", {"step": 1})))
    assert (numbers(ended), ended.lost_uids) == ((2, 1, 0, 0, 0, 1), ("b",))
    overtaken = history(
        served, ("claimed", "b", {"step": 1}), ("served", "c", {"step": 2}), ("trained", "c", {"step": 2})
    )
    assert account(overtaken).lost_uids == ("b",)


def test_training_on_what_nobody_served_is_told() -> None:
    result = account(history(("trained", "x", {"step": 1})))
    assert (result.unserved_uids, result.exact) == (("x",), False)


@dataclass
class Truth:
    """What really happened: `weights` is in the model's memory, everything else in the books of the driver."""

    step: int = 0
    weights: list[str] = field(default_factory=list)
    served: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    next_row: int = 0


@dataclass
class Run:
    """A run that crashes: truth, its copy in the checkpoint, and the journal, which no crash touches.

    `sparse`: the journal of a run that serves nothing ahead and keeps every step: no steps but on claims and trained
    marks, no journal positions.
    """

    sparse: bool = False
    now: Truth = field(default_factory=Truth)
    saved: Truth = field(default_factory=Truth)
    position: int = 0
    events: list[Event] = field(default_factory=list)
    attempts: int = 0

    def tell(self, kind: str, uids: list[str], **detail: Any) -> None:
        if self.sparse and kind in ("served", "dropped"):
            detail.pop("step")
        self.events.append(Event(len(self.events) + 1, 0.0, kind, tuple(uids), detail))

    def open(self) -> list[str]:
        return sorted(self.now.served - self.now.dropped - set(self.now.weights))

    def serve(self, count: int) -> None:
        rows = [f"r{self.now.next_row + i}" for i in range(count)]
        self.now.next_row += count
        self.now.served |= set(rows)
        self.tell("served", rows, step=self.now.step + 1)

    def reissue(self, which: int) -> None:
        for row in self.open()[which : which + 1]:
            self.attempts += 1
            self.tell("failed", [row])
            self.tell("reissued", [f"{row}x{self.attempts}"], base_uids=[row])

    def drop(self, which: int) -> None:
        for row in self.open()[which : which + 1]:
            self.now.dropped.add(row)
            self.tell("dropped", [row], step=self.now.step + 1, reason="it failed")

    def train(self, count: int, stop_after: int) -> None:
        """One step; the process dies after `stop_after` of its four deeds (4 = it lives)."""
        rows = self.open()[:count]
        if not rows:
            return None
        self.tell("claimed", rows, step=self.now.step + 1)
        if stop_after == 0:
            return self.crash()
        self.now.weights += rows
        self.now.step += 1
        if stop_after == 1:
            return self.crash()
        if count % 2 or self.sparse:
            self._keep()
        if stop_after == 2:
            return self.crash()
        self.tell("trained", rows, step=self.now.step)
        return self.crash() if stop_after == 3 else None

    def save(self) -> None:
        if not self.sparse:
            self._keep()

    def _keep(self) -> None:
        self.saved, self.position = copy.deepcopy(self.now), len(self.events)

    def crash(self) -> None:
        self.now = copy.deepcopy(self.saved)
        self.tell("resumed", [], from_step=self.now.step, position=None if self.sparse else self.position)

    def revive(self, which: int) -> None:
        """A group that was served and finished before the crash is used again, without another `served`."""
        known = {uid for event in self.events if event.kind == "served" for uid in event.uids}
        for row in sorted(known - self.now.served)[which : which + 1]:
            self.now.served.add(row)
            self.now.next_row = max(self.now.next_row, int(row[1:]) + 1)
            self.tell("finished", [row])


DEEDS = st.one_of(
    st.tuples(st.just("serve"), st.tuples(st.integers(1, 4))),
    st.tuples(st.just("reissue"), st.tuples(st.integers(0, 5))),
    st.tuples(st.just("drop"), st.tuples(st.integers(0, 5))),
    st.tuples(st.just("train"), st.tuples(st.integers(1, 4), st.integers(0, 6))),
    st.tuples(st.just("save"), st.tuples()),
    st.tuples(st.just("crash"), st.tuples()),
    st.tuples(st.just("revive"), st.tuples(st.integers(0, 5))),
)


@settings(max_examples=400)
@given(st.lists(DEEDS, max_size=30), st.booleans())
def test_the_accounts_agree_with_the_truth_after_every_deed(
    deeds: list[tuple[str, tuple[int, ...]]], sparse: bool
) -> None:
    run = Run(sparse)
    for name, arguments in deeds:
        getattr(run, name)(*arguments)
        result = account(run.events)
        truth = (len(run.now.served), len(set(run.now.weights)), len(run.now.dropped), len(run.open()), 0, 0)
        assert numbers(result) == truth
        assert result.exact


def test_the_books_of_a_real_journal(tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path))
    journal.record("served", ["a"], step=1)
    journal.resumed(from_step=0, position=0)
    journal.record("served", ["a"], step=1)
    journal.record("trained", ["a"], step=1)
    journal.ended(1)
    assert numbers(accounting(journal)) == (1, 1, 0, 0, 0, 0)
    assert accounting(RunDir(tmp_path)) == accounting(journal)

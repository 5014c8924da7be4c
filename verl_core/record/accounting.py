"""Accounting: what became of every dataset row that was served. Invariant (the law "exactly once"):

    served = trained + dropped + in flight + lost,   lost = 0,   trained_twice = 0

All counts are of base uids (one per row served, however often it was re-issued), relative to the lineage of the final
weights: the events that the weights now held descend from. A crash after checkpoint k abandons what came later, so
`resumed` from step k, position p voids

* trained marks whose `step` is above k;
* claims whose `step` is above k and above r, the last step whose trajectories are kept (`rolled_out`): these will be
  trained on as they are;
* servings and drops that are numbered above p and whose `step` is above k and r. Without p the step alone decides; an
  event that names no step belongs to the one after the last trained step. A later event of the same row revives its
  serving: the group was finished before the crash and is used again.

A claim of a step <= k that has no outcome yet counts as trained at that moment: checkpoint k holds its update, and the
crash only came before the mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from verl_core.record.journal import Event, Journal, read_events
from verl_core.record.rundir import RunDir
from verl_core.transfer.accounting import kind_of


@dataclass(frozen=True)
class Accounting:
    """Attributes:
    served: rows of the lineage.
    trained: rows in the weights.
    dropped: rows given up, by kind of reason: what stands before its first colon. The journal has the rest.
    in_flight: served, with no outcome yet.
    trained_twice: rows in the weights more than once (two steps, or two attempts); counted in `trained` too.
    lost: rows that will never have an outcome: claimed by a step that later steps have overtaken, or in flight at
        `ended`.
    twice_uids, lost_uids, unserved_uids: which; `unserved` were trained or dropped though no event ever served them.
    """

    served: int
    trained: int
    dropped: dict[str, int]
    in_flight: int
    trained_twice: int
    lost: int
    twice_uids: tuple[str, ...] = ()
    lost_uids: tuple[str, ...] = ()
    unserved_uids: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the law holds."""
        return not (self.trained_twice or self.lost or self.unserved_uids)


@dataclass(slots=True)
class _Row:
    """The lineage's view of one base uid."""

    served: int = 0  # number of the serving event in the lineage; 0 = not in the lineage
    ever_served: bool = False
    serving_step: int = 0
    claim: int | None = None  # step
    trained: set[int] = field(default_factory=set)  # steps
    doubled: set[int] = field(default_factory=set)  # steps whose mark names two attempts of the row
    drop: tuple[str, int, int] | None = None  # reason, step, event number

    @property
    def settled(self) -> bool:
        return bool(self.trained) or self.drop is not None

    @property
    def in_lineage(self) -> bool:
        return self.served > 0 or self.settled


class _Lineage:
    """Folds events, in order, into the rows of the lineage."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}
        self.bases: dict[str, str] = {}
        self.last_trained = 0
        self.is_over = False

    def apply(self, event: Event) -> None:
        if event.kind == "resumed":
            step, kept = int(event.detail["from_step"]), event.detail.get("rolled_out")
            self._resume(step, event.detail.get("position"), step if kept is None else max(step, int(kept)))
        elif event.kind == "ended":
            self.is_over = True
        else:
            self.is_over = False
            bases = event.detail.get("base_uids") or [self.bases.get(uid, uid) for uid in event.uids]
            self.bases.update(zip(event.uids, bases, strict=True))
            seen: set[str] = set()
            for base in bases:
                self._mark(self.rows.setdefault(base, _Row()), event, base in seen)
                seen.add(base)

    def _mark(self, row: _Row, event: Event, is_repeated: bool) -> None:
        named = event.detail.get("step")
        step = int(named) if named is not None else self.last_trained + 1
        row.ever_served |= event.kind == "served"
        if row.ever_served and not row.served:  # serving it again, after a crash, does not make it younger
            row.served, row.serving_step = event.number, step
        if event.kind == "claimed":
            row.claim = step
        elif event.kind == "trained":
            done = step if named is not None or row.claim is None else row.claim
            row.trained.add(done)
            if is_repeated:
                row.doubled.add(done)
            self.last_trained = max(self.last_trained, done)
        elif event.kind == "dropped":
            row.drop = (str(event.detail.get("reason", "no reason given")), step, event.number)

    def _resume(self, step: int, position: int | None, rolled_out: int) -> None:
        self.is_over = False
        self.last_trained = step
        for row in self.rows.values():
            row.trained = {done for done in row.trained if done <= step}
            row.doubled &= row.trained
            if row.drop is not None and _is_void(row.drop[2], row.drop[1], rolled_out, position):
                row.drop = None
            if row.claim is not None and row.claim > rolled_out:
                row.claim = None
            if row.claim is not None and row.claim <= step and not row.settled:
                row.trained.add(row.claim)
            if not row.settled and row.claim is None and _is_void(row.served, row.serving_step, rolled_out, position):
                row.served = 0


def _is_void(number: int, event_step: int, step: int, position: int | None) -> bool:
    """Whether an event is later than the checkpoint by both its marks."""
    return event_step > step and (position is None or number > position)


def account(events: Iterable[Event]) -> Accounting:
    """The accounts after these events."""
    lineage = _Lineage()
    for event in events:
        lineage.apply(event)
    rows = {base: row for base, row in lineage.rows.items() if row.in_lineage}
    open_rows = {base: row for base, row in rows.items() if not row.settled}
    lost = sorted(
        base
        for base, row in open_rows.items()
        if lineage.is_over or (row.claim is not None and row.claim < lineage.last_trained)
    )
    kinds = Counter(kind_of(row.drop[0]) for row in rows.values() if row.drop and not row.trained)
    twice = sorted(base for base, row in rows.items() if len(row.trained) > 1 or row.doubled)
    return Accounting(
        served=len(rows),
        trained=sum(bool(row.trained) for row in rows.values()),
        dropped=dict(sorted(kinds.items())),
        in_flight=len(open_rows) - len(lost),
        trained_twice=len(twice),
        lost=len(lost),
        twice_uids=tuple(twice),
        lost_uids=tuple(lost),
        unserved_uids=tuple(sorted(base for base, row in rows.items() if not row.ever_served)),
    )


def accounting(source: Journal | RunDir) -> Accounting:
    """The accounts of a run, from its journal."""
    return account(source.events() if isinstance(source, Journal) else read_events(source))

"""Drops: who is dropped, for the metrics. Invariant: bounded memory, whatever runs.

Dropping what is old drops what is long, because what is long arrives late. The share that is dropped of each quarter of
the response lengths shows it; quarters are of all groups that arrived so far, a group's length is that of its longest
response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_core.trajectory import Reward
from verl_core.transfer.accounting import kind_of

_EXACT = 64  # shorter lengths have a bin each; above, a bin is 1/32 of its octave wide
_FINE = 5
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class DropSummary:
    """Since the last summary.

    Attributes:
        groups: dropped in all.
        by_reason: kinds of reason (what stands before the colon); a group with two reasons counts under both.
        trained_by_length, dropped_by_length: groups that arrived and went to the trainer, or were dropped, by quarter
            of the response lengths, shortest first; fractional where a length lies on a border.
        samples, unscored: of the dropped groups that were scored as they arrived: their samples, and those of them that
            could not be scored.
        example: key and reason of one of these.
    """

    groups: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    trained_by_length: tuple[float, ...] = (0.0,) * QUARTERS
    dropped_by_length: tuple[float, ...] = (0.0,) * QUARTERS
    samples: int = 0
    unscored: int = 0
    example: str = ""

    @property
    def share_by_length(self) -> tuple[float, ...]:
        """Dropped / (dropped + trained) of each quarter; 0 where there was neither."""
        pairs = zip(self.dropped_by_length, self.trained_by_length, strict=True)
        return tuple(dropped / (dropped + trained) if dropped else 0.0 for dropped, trained in pairs)

    def metrics(self) -> dict[str, float]:
        """For the step's numbers: `buffer/dropped`, `buffer/dropped/<reason>`, `buffer/drop_share/length_q1` .. `q4`
        (longest)."""
        reasons = {f"buffer/dropped/{reason}": float(count) for reason, count in sorted(self.by_reason.items())}
        shares = {f"buffer/drop_share/length_q{q}": share for q, share in enumerate(self.share_by_length, start=1)}
        return {"buffer/dropped": float(self.groups), **reasons, **shares}


class Drops:
    """Counts until the next `summary`."""

    def __init__(self) -> None:
        self._all: Counter[int] = Counter()  # groups that ever arrived, by bin of their length
        self._forget()

    def _forget(self) -> None:
        self._groups = 0
        self._by_reason: Counter[str] = Counter()
        self._trained: Counter[int] = Counter()
        self._dropped: Counter[int] = Counter()
        self._samples, self._unscored, self._example = 0, 0, ""

    def arrive(self, length: int) -> None:
        """A group arrived."""
        self._all[_bin(length)] += 1

    def train(self, length: int) -> None:
        """A group that arrived is trained on."""
        self._trained[_bin(length)] += 1

    def drop(self, reasons: Sequence[str], length: int | None, rewards: Sequence[Reward] = ()) -> None:
        """A group is dropped for `reasons`; `length` None = it never arrived."""
        failed = [reward for reward in rewards if reward.quarantined]
        self._samples += len(rewards)
        self._unscored += len(failed)
        if failed and not self._example:
            self._example = f"{failed[0].key}: {failed[0].reason}"
        self._groups += 1
        self._by_reason.update({kind_of(reason) for reason in reasons})
        if length is not None:
            self._dropped[_bin(length)] += 1

    @property
    def trouble(self) -> str:
        """What could not be scored of the dropped groups, in words: it may be why they look alike. Empty when all
        could."""
        if not self._unscored:
            return ""
        return (
            f"{self._unscored} of {self._samples} samples of dropped groups could not be scored, for example "
            f"{self._example}"
        )

    def summary(self) -> DropSummary:
        """What was counted since the last call."""
        shares = self._quarters()
        by_length = _spread(self._trained, shares), _spread(self._dropped, shares)
        summary = DropSummary(
            self._groups, dict(self._by_reason), *by_length, self._samples, self._unscored, self._example
        )
        self._forget()
        return summary

    def _quarters(self) -> dict[int, list[float]]:
        """Share of each bin's groups that lies in each quarter of all."""
        total, below = sum(self._all.values()), 0
        shares = {}
        for place in sorted(self._all):
            above = below + self._all[place]
            edges = [(total * q / QUARTERS, total * (q + 1) / QUARTERS) for q in range(QUARTERS)]
            overlap = [max(0.0, min(above, high) - max(below, low)) for low, high in edges]
            shares[place] = [part / self._all[place] for part in overlap]
            below = above
        return shares


def _bin(length: int) -> int:
    """Number of the length's bin, growing with it."""
    if length < _EXACT:
        return length
    octave = length.bit_length() - _FINE - 1
    return (octave << _FINE) + (length >> octave)


def _spread(bins: Counter[int], shares: dict[int, list[float]]) -> tuple[float, ...]:
    return tuple(sum(count * shares[place][q] for place, count in bins.items()) for q in range(QUARTERS))

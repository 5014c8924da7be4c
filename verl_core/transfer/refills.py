"""Refills: what is served in the place of dropped groups. Invariant: no batch costs more generation than its bounds
say, and a run in which nothing passes ends with the reason.

Two bounds hold for what filters reject (DAPO's dynamic sampling, Yu et al. 2025, arXiv 2503.14476, section 3.2):

    max_gen_batches = m > 0   one batch asks for at most m x batch size groups in all, its first batch included
    max_gen_batches = 0       at most 4 batches' worth of groups are rejected in a row, without one that passes

What is dropped because it failed or grew old is always served again; failures in a row are bounded like the second.

A batch at its cap leaves rejected groups without others in their place. As many of them as the batch is smaller for are
settled with it. The rest were served ahead, for later batches: they are owed to the next batch, within its own bound.
Near its end a run serves less than a batch for a step; that step may then replace so many more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_core.errors import RolloutError
from verl_core.trajectory import Prompt

Refill = Callable[[int], Sequence[Prompt]]

_BARREN_BATCHES = 4  # so many batches of groups dropped in a row, without one that could be trained on, end the run
_KEY = "algorithm.filter_groups"


@dataclass(frozen=True, slots=True)
class Cap:
    """Attributes:
    max_gen_batches: see the module; 0 = only the bound on rejections in a row.
    when_capped: what happens when the cap is reached and the batch is not full: `error`, or `train` on what passed.
    """

    max_gen_batches: int = 0
    when_capped: Literal["error", "train"] = "error"


class Refills:
    """Args:
    refill: gives up to so many new prompts; None = nothing is served in the place of dropped groups.
    batch_size: groups of a step; None = as many as are asked for.
    """

    def __init__(self, refill: Refill | None, cap: Cap, batch_size: int | None) -> None:
        self._refill, self._cap, self._batch_size = refill, cap, batch_size
        self._in_a_row = 0  # rejected by filters since a group passed
        self._owed = 0  # rejected and not replaced
        self._spent = 0  # replaced for rejected ones, for the batch that is coming together
        self._first: int | None = None  # groups served for it to begin with; None = a whole batch

    def reject(self, count: int) -> None:
        """Filters rejected groups."""
        self._in_a_row += count
        self._owed += count

    def accept(self, count: int) -> None:
        """Groups arrived that may be trained on."""
        if count:
            self._in_a_row = 0

    @property
    def owed(self) -> int:
        """Groups that were rejected and not replaced."""
        return self._owed

    def begin_batch(self, first: int, owed: int) -> None:
        """See ReplayBuffer.begin_batch."""
        self._first, self._owed = first, owed

    def end_batch(self, missing: int) -> None:
        """A batch was claimed, with so many groups less than were asked for."""
        self._in_a_row = self._spent = 0
        self._first = None
        self._owed = max(0, self._owed - missing)

    def due(self, n_groups: int, owed: int, barren: int, dump: Callable[[], str]) -> Sequence[Prompt]:
        """New prompts for dropped groups, as far as the bounds go.

        Args:
            owed: dropped for other reasons than a filter.
            barren: groups in a row that failed for good.

        Raises:
            RolloutError: too many in a row were dropped.
        """
        if self._refill is None or not owed + self._owed:
            return ()
        in_a_row = max(barren, 0 if self._cap.max_gen_batches else self._in_a_row)
        if in_a_row >= _BARREN_BATCHES * self._size(n_groups):
            raise RolloutError(
                f"{in_a_row} groups in a row were dropped and none could be trained on. The reasons are in "
                f"journal.jsonl; mend them, then run again. {dump()}"
            )
        again = min(self._owed, self._left(n_groups))
        self._owed -= again
        self._spent += again
        return self._refill(owed + again) if owed + again else ()

    def refuse_a_small_batch(self, n_groups: int, found: int, step: int, trouble: str = "") -> None:
        """Nothing is open any more, and fewer groups than asked for are there.

        Args:
            trouble: of scoring the dropped groups.

        Raises:
            RolloutError: because the cap was reached, and that is to end the run, or there is nothing to train on.
        """
        is_enough = found > 0 and self._cap.when_capped == "train"
        if not self._owed or self._refill is None or is_enough:
            return
        most = self._cap.max_gen_batches
        train = f"set {_KEY}.when_capped=train to train on what is there, " if found else ""
        raise RolloutError(
            f"step {step}: {most} x {self._size(n_groups)} groups were generated, as many as "
            f"{_KEY}.max_num_gen_batches={most} allows, and {found} of {n_groups} are not constant. Raise it, {train}"
            "or give prompts that are neither always nor never solved; journal.jsonl has the values of the dropped "
            f"groups{trouble and '. '}{trouble}"
        )

    def _left(self, n_groups: int) -> int:
        most, size = self._cap.max_gen_batches, self._size(n_groups)
        first = size if self._first is None else min(self._first, size)  # what is beyond is for later batches
        return max(0, most * size - first - self._spent) if most else self._owed

    def _size(self, n_groups: int) -> int:
        return self._batch_size or n_groups

"""A group between submit and clear, as the replay buffer sees it. Invariant: a flight belongs to one attempt of one
group."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from verl_core.trajectory import Prompt, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks, so that tests can turn them. `monotonic` measures waits, `wall` stamps tags; both in seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Group:
    """A settled group, as the trainer gets it.

    Attributes:
        prompt: the attempt that finished.
        trajectories: in (session, index) order; never empty.
        errors: why earlier attempts failed, oldest first.
    """

    prompt: Prompt
    trajectories: list[Trajectory]
    errors: tuple[str, ...] = ()


class Stage(StrEnum):
    """Where a flight is: in the store (PENDING, RUNNING), its rows in memory (ARRIVED), or the trainer's (CLAIMED)."""

    PENDING = "pending"
    RUNNING = "running"
    ARRIVED = "arrived"
    CLAIMED = "claimed"


@dataclass(slots=True)
class Flight:
    """Attributes:
    prompt: of this attempt.
    since: monotonic seconds of the last change of `stage`.
    owner: who runs it, once known.
    errors: of earlier attempts.
    group: from ARRIVED on.
    announced: whether an on_arrival callback got it.
    step: global step that claimed it.
    """

    prompt: Prompt
    since: float
    stage: Stage = Stage.PENDING
    owner: str = ""
    errors: tuple[str, ...] = ()
    group: Group | None = None
    announced: bool = False
    step: int = -1

    def tag(self, clock: Clock) -> GroupTag:
        """The tag that opens this attempt."""
        prompt = self.prompt
        return GroupTag(
            uid=prompt.uid,
            base_uid=prompt.base_uid,
            attempt=prompt.attempt,
            ordinal=prompt.ordinal,
            step=prompt.step,
            status=GroupStatus.PENDING,
            updated=clock.wall(),
        )

    def describe(self, now: float) -> str:
        """One line for a state dump: which group, where, since when."""
        prompt, owner = self.prompt, self.owner or "nobody yet"
        return (
            f"{prompt.uid} (ordinal {prompt.ordinal}, attempt {prompt.attempt}) {self.stage} "
            f"for {now - self.since:.0f} s, owner {owner}"
        )

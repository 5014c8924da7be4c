"""A group between submit and clear, as the replay buffer sees it. Invariant: a flight belongs to one attempt of one
group."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from verl_core.trajectory import Prompt, Reward, Trajectory
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
        rewards: one per trajectory, in order, where groups are scored as they arrive; else empty.
    """

    prompt: Prompt
    trajectories: list[Trajectory]
    errors: tuple[str, ...] = ()
    rewards: tuple[Reward, ...] = ()

    @property
    def min_version(self) -> int:
        """Oldest weight version that sampled a token of the group; -1 when there is no token at all."""
        return min((segment.weight_version for row in self.trajectories for segment in row.segments), default=-1)

    @property
    def longest(self) -> int:
        """Response tokens of the longest trajectory: it decides when the group arrives."""
        return max(len(row.response_ids) for row in self.trajectories)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in memory."""
        return sum(
            row.prompt_ids.nbytes + row.response_ids.nbytes + row.response_mask.nbytes + row.rollout_log_probs.nbytes
            for row in self.trajectories
        )


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
    since: seconds of the service clock at the last change of `stage`.
    version: weight version the servers had at least reached when it was sent out.
    owner: who runs it, once known.
    errors: of earlier attempts.
    group: from ARRIVED on.
    oldest: oldest weight version in it; `version` until it arrived.
    longest, nbytes: of the group, from ARRIVED on.
    announced: whether an on_arrival callback got it.
    passed: whether it stayed when arrived groups were judged for the first time.
    step: global step that claimed it.
    """

    prompt: Prompt
    since: float
    version: int = 0
    stage: Stage = Stage.PENDING
    owner: str = ""
    errors: tuple[str, ...] = ()
    group: Group | None = None
    oldest: int = field(init=False)
    longest: int = 0
    nbytes: int = 0
    announced: bool = False
    passed: bool = False
    step: int = -1

    def __post_init__(self) -> None:
        self.oldest = self.version

    @classmethod
    def adopted(cls, group: Group, now: float) -> Flight:
        """Of a group that an earlier process kept. One of which a sample could not be scored is scored again, whole,
        and then announced once more: whatever stood in the way may be mended."""
        failed = any(reward.quarantined for reward in group.rewards)
        version = max(0, group.prompt.step - 1)
        flight = cls(group.prompt, now, version, errors=group.errors, announced=not failed)
        flight.land(replace(group, rewards=()) if failed else group)
        return flight

    @property
    def ordinal(self) -> int:
        """Of the prompt."""
        return self.prompt.ordinal

    def land(self, group: Group) -> None:
        """Its rows are in memory."""
        self.group, self.longest, self.nbytes = group, group.longest, group.nbytes
        if (oldest := group.min_version) >= 0:
            self.oldest = oldest

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

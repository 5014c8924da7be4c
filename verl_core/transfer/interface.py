"""TrajectoryStore: the contract that TransferQueueStore and MemoryStore both keep (one test suite holds them to it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from verl_core.trajectory import Trajectory
from verl_core.transfer.group import GroupTag, Manifest


@dataclass(frozen=True, slots=True)
class Finished:
    """A group that settled: its terminal tag and its trajectories, as an agent worker hands them over."""

    tag: GroupTag
    trajectories: tuple[Trajectory, ...]


class TrajectoryStore(Protocol):
    """Groups' tags (small) in one partition; each group's trajectories, packed into one value, in another.

    Owner of each edge: the buffer opens, claims and clears groups; the agent worker that runs a group writes `running`
    and the terminal tag. Every call is bounded by the store's call deadline and raises `DeadlineExceeded` or
    `StoreError`.

    Attributes:
        quarantined_tags: foreign or half-written keys met so far.
    """

    quarantined_tags: int

    def write_tags(self, tags: Sequence[GroupTag]) -> None:
        """Write whole tags (open or move groups). Blocks until the store acknowledged."""

    def finish(self, groups: Sequence[Finished]) -> list[GroupTag]:
        """Group commit of settled groups: rows first, until they are acknowledged as readable, then terminal tags,
        then the doorbell with their uids. Fills in each tag's manifest and returns the tags as written. Blocks.

        Raises:
            StoreError: a tag is not terminal, a trajectory is malformed or another group's, or the store lost
                something; no tag was written.
        """

    def tags(self) -> dict[str, GroupTag]:
        """Snapshot of all groups by uid; foreign or half-written keys are left out and counted in `quarantined_tags`.
        Linear in the number of groups: for start, resume and the safety net, not for every sample."""

    def read_tags(self, uids: Sequence[str]) -> dict[str, GroupTag]:
        """Tags of the named groups; missing ones are left out. Cost does not depend on how many groups are listed."""

    def fetch(self, manifests: Sequence[Manifest]) -> list[Trajectory]:
        """Rows of the manifests, in manifest order.

        Raises:
            StoreError: rows are missing, have another schema, or disagree with their manifest; names the group.
        """

    def clear_groups(self, uids: Sequence[str]) -> None:
        """Forget tags. Idempotent."""

    def clear_rows(self, uids: Sequence[str]) -> None:
        """Free the rows of groups. Idempotent. Never call it for a group that a reader may still fetch."""

    def reset(self) -> None:
        """Forget every group and row. For a session that takes over a warm store, when no owner writes any more."""

    def wait(self, timeout_s: float) -> list[str]:
        """Uids rung since the last call, at once when there are any, else after up to `timeout_s`. A lost ring is
        harmless: callers also look at `tags()` now and then."""

    def close(self) -> None:
        """Leave the store without harming other users of it."""

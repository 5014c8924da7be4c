"""GroupTag and Manifest: what the store knows of a group.

Invariant: the terminal tag is written once, by the owner, after all sessions settled; readers trust its manifest and
never a listing of trajectories.

    pending -> running -> finished | failure -> claimed -> cleared
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NOWHERE = -1


class GroupStatus(StrEnum):
    """Where a group is. Only the buffer and the journal know `claimed` and `cleared`: a claimed group's tag is gone."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILURE = "failure"

    @property
    def terminal(self) -> bool:
        """Whether no session of the group will write again."""
        return self in (GroupStatus.FINISHED, GroupStatus.FAILURE)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a terminal group left in the data partition.

    Attributes:
        keys: trajectory keys, in (session, index) order.
        nbytes: packed bytes over all rows.
        tokens: response tokens over all rows.
        min_version, max_version: weight versions used; -1 when there is no trajectory.
        errors: one message per failed session.
        place: where TransferQueue put the rows, its index; NOWHERE when nobody knows, and the reader has to ask. Only a
            short cut: places are given away again, so what is found there counts after the check of `rows.verified`.
    """

    keys: tuple[str, ...] = ()
    nbytes: int = 0
    tokens: int = 0
    min_version: int = -1
    max_version: int = -1
    errors: tuple[str, ...] = ()
    place: int = NOWHERE


@dataclass(frozen=True, slots=True)
class GroupTag:
    """The whole tag of a group; always written whole, never merged.

    Attributes:
        uid, base_uid, attempt, ordinal, step: of the prompt.
        status: see GroupStatus.
        owner: who runs it; empty while pending.
        updated: unix seconds of this tag.
    """

    uid: str
    base_uid: str
    attempt: int
    ordinal: int
    step: int
    status: GroupStatus
    owner: str = ""
    updated: float = 0.0
    manifest: Manifest = field(default_factory=Manifest)

    def settled(self, updated: float, manifest: Manifest) -> GroupTag:
        """The same group with another `updated` and `manifest`. (`dataclasses.replace`: five times slower.)"""
        whose = self.uid, self.base_uid, self.attempt, self.ordinal, self.step
        return GroupTag(*whose, self.status, self.owner, updated, manifest)

    def stored_at(self, place: int) -> GroupTag:
        """The same group, its rows at `place`."""
        it = self.manifest
        return self.settled(
            self.updated,
            Manifest(it.keys, it.nbytes, it.tokens, it.min_version, it.max_version, it.errors, place),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for the wire. (`dataclasses.asdict` copies deeply: ten times slower.)"""
        plain = {name: getattr(self, name) for name in self.__slots__}
        manifest = {name: getattr(self.manifest, name) for name in Manifest.__slots__}
        return {**plain, "status": self.status.value, "manifest": manifest}

    @classmethod
    def from_dict(cls, tag: dict[str, Any]) -> GroupTag:
        """Inverse of `to_dict`; tuples that became lists on the wire are restored.

        Raises:
            KeyError, TypeError, ValueError: the dict is not a whole tag (a foreign or half-written key).
        """
        known = dict(tag["manifest"])
        manifest = Manifest(**{**known, "keys": tuple(known["keys"]), "errors": tuple(known["errors"])})
        return cls(**{**tag, "status": GroupStatus(tag["status"]), "manifest": manifest})

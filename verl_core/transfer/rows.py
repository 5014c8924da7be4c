"""From groups to rows and back, the same for every store. Invariant: a manifest is computed from the very bytes that
are stored, and rows are handed out only when they agree with their manifest in keys, bytes, tokens and weight versions.

All rows of a group are one value under the group's uid: a group is there whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.codec import pack, unpack
from verl_core.transfer.group import GroupTag, Manifest
from verl_core.transfer.interface import Finished

Commit = tuple[GroupTag, bytes | bytearray]
_IN_GROUP = attrgetter("session", "index")


def commit_of(group: Finished) -> Commit:
    """The terminal tag with its manifest, and the packed rows in (session, index) order; empty when there are none.

    Raises:
        StoreError: the tag is not terminal, a trajectory belongs to another group, or two have one key.
    """
    tag = group.tag
    if not tag.status.terminal:
        raise StoreError(f"group {tag.uid} is {tag.status}; only finished or failed groups can be committed")
    trajectories = sorted(group.trajectories, key=_IN_GROUP)
    strangers = [row for row in trajectories if row.uid != tag.uid or row.ordinal != tag.ordinal]
    if strangers:
        raise StoreError(
            f"group {tag.uid} (ordinal {tag.ordinal}) is handed trajectories of another group: "
            f"{[row.key for row in strangers]}"
        )
    keys = _keys(trajectories)
    if len(set(keys)) != len(keys):
        raise StoreError(f"group {tag.uid} has two trajectories with one (session, index): {keys}")
    blob = pack(trajectories) if trajectories else b""
    return tag.settled(time.time(), _manifest(trajectories, keys, len(blob), tag.manifest.errors)), blob


def _keys(trajectories: Sequence[Trajectory]) -> list[str]:
    """`Trajectory.key` of each, without a call for each."""
    return [f"{row.uid}_{row.session}_{row.index}" for row in trajectories]


def _manifest(
    trajectories: Sequence[Trajectory], keys: Sequence[str], nbytes: int, errors: tuple[str, ...]
) -> Manifest:
    return Manifest(tuple(keys), nbytes, *_counts(trajectories), errors)


def _counts(trajectories: Sequence[Trajectory]) -> tuple[int, int, int]:
    """Response tokens, oldest and newest weight version."""
    versions = [part.weight_version for row in trajectories for part in row.segments]
    tokens = sum([len(row.response_ids) for row in trajectories])
    return tokens, min(versions, default=-1), max(versions, default=-1)


def uid_of(manifest: Manifest) -> str:
    """The group whose rows `manifest` names; it must name some."""
    return manifest.keys[0].rsplit("_", 2)[0]


def verified(manifest: Manifest, blob: bytes) -> list[Trajectory]:
    """The trajectories in `blob`.

    Raises:
        StoreError: the blob is damaged, another group's, or disagrees with `manifest`.
    """
    try:
        trajectories = unpack(blob)
    except StoreError as error:
        raise StoreError(f"rows of group {uid_of(manifest)}: {error}") from error
    keys, counts = _keys(trajectories), _counts(trajectories)
    said = manifest.tokens, manifest.min_version, manifest.max_version
    if len(blob) != manifest.nbytes or counts != said or tuple(keys) != manifest.keys:
        found = _manifest(trajectories, keys, len(blob), manifest.errors)
        raise StoreError(
            f"rows of group {uid_of(manifest)} disagree with their manifest: it says {manifest}, they are {found}"
        )
    return trajectories

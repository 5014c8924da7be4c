"""From groups to rows and back, the same for every store. Invariant: a manifest is computed from the very bytes that
are stored, and rows are handed out only when they agree with their manifest in keys, bytes, tokens and weight versions.

All rows of a group are one value under the group's uid: a group is there whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.codec import pack, unpack
from verl_core.transfer.group import GroupTag, Manifest
from verl_core.transfer.interface import Finished


def commit_of(group: Finished) -> tuple[GroupTag, bytes | bytearray]:
    """The terminal tag with its manifest, and the packed rows in (session, index) order; empty when there are none.

    Raises:
        StoreError: the tag is not terminal, a trajectory belongs to another group, or two have one key.
    """
    tag = group.tag
    if not tag.status.terminal:
        raise StoreError(f"group {tag.uid} is {tag.status}; only finished or failed groups can be committed")
    trajectories = sorted(group.trajectories, key=lambda row: (row.session, row.index))
    strangers = [row.key for row in trajectories if row.uid != tag.uid or row.ordinal != tag.ordinal]
    if strangers:
        raise StoreError(
            f"group {tag.uid} (ordinal {tag.ordinal}) is handed trajectories of another group: {strangers}"
        )
    keys = [row.key for row in trajectories]
    if len(set(keys)) != len(keys):
        raise StoreError(f"group {tag.uid} has two trajectories with one (session, index): {keys}")
    blob = pack(trajectories) if trajectories else b""
    return replace(tag, updated=time.time(), manifest=_manifest(trajectories, len(blob), tag.manifest.errors)), blob


def _manifest(trajectories: Sequence[Trajectory], nbytes: int, errors: tuple[str, ...]) -> Manifest:
    versions = [segment.weight_version for row in trajectories for segment in row.segments]
    return Manifest(
        keys=tuple([row.key for row in trajectories]),
        nbytes=nbytes,
        tokens=sum([len(row.response_ids) for row in trajectories]),
        min_version=min(versions, default=-1),
        max_version=max(versions, default=-1),
        errors=errors,
    )


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
    found = _manifest(trajectories, len(blob), manifest.errors)
    if found != manifest:
        raise StoreError(
            f"rows of group {uid_of(manifest)} disagree with their manifest: it says {manifest}, they are {found}"
        )
    return trajectories

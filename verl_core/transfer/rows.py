"""From groups to rows and back, the same for every store. Invariant: a manifest is computed from the very bytes that
are stored, and rows are handed out only when they agree with their manifest in keys, bytes, tokens and weight
versions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.codec import pack, unpack
from verl_core.transfer.group import GroupTag, Manifest
from verl_core.transfer.interface import Finished


def commit_of(group: Finished) -> tuple[GroupTag, dict[str, bytes]]:
    """The terminal tag with its manifest, and the packed row of each trajectory by key, in (session, index) order.

    Raises:
        StoreError: the tag is not terminal, a trajectory belongs to another group, or two have one key.
    """
    tag = group.tag
    if not tag.status.terminal:
        raise StoreError(
            f"group {tag.uid} is handed over as {tag.status}; only finished or failed groups can be committed"
        )
    trajectories = sorted(group.trajectories, key=lambda row: (row.session, row.index))
    strangers = [row.key for row in trajectories if row.uid != tag.uid or row.ordinal != tag.ordinal]
    if strangers:
        raise StoreError(
            f"group {tag.uid} (ordinal {tag.ordinal}) is handed trajectories of another group: {strangers}"
        )
    rows = {row.key: pack([row]) for row in trajectories}
    if len(rows) != len(trajectories):
        raise StoreError(
            f"group {tag.uid} has two trajectories with one (session, index): {[*rows]}, {len(trajectories)}"
        )
    manifest = _manifest(trajectories, tuple(rows), [*rows.values()], tag.manifest.errors)
    return replace(tag, updated=time.time(), manifest=manifest), rows


def _manifest(
    trajectories: Sequence[Trajectory], keys: tuple[str, ...], blobs: Sequence[bytes], errors: tuple[str, ...]
) -> Manifest:
    versions = [segment.weight_version for row in trajectories for segment in row.segments]
    return Manifest(
        keys=keys,
        nbytes=sum([len(blob) for blob in blobs]),
        tokens=sum([len(row.response_ids) for row in trajectories]),
        min_version=min(versions, default=-1),
        max_version=max(versions, default=-1),
        errors=errors,
    )


def verified(manifests: Sequence[Manifest], blobs: Sequence[bytes]) -> list[Trajectory]:
    """Trajectories of `blobs`, which are aligned with the keys of `manifests`, one manifest after the other.

    Raises:
        StoreError: a blob is damaged or another row's, or a group disagrees with its manifest; names the keys.
    """
    found: list[Trajectory] = []
    at = 0
    for manifest in manifests:
        found += _verified(manifest, blobs[at : at + len(manifest.keys)])
        at += len(manifest.keys)
    return found


def _verified(manifest: Manifest, blobs: Sequence[bytes]) -> list[Trajectory]:
    trajectories = []
    for key, blob in zip(manifest.keys, blobs, strict=True):
        try:
            rows = unpack(blob)
        except StoreError as error:
            raise StoreError(f"row {key}: {error}") from error
        if len(rows) != 1 or rows[0].key != key:
            raise StoreError(f"row {key} holds {[row.key for row in rows]}: the store gave another row's bytes")
        trajectories.append(rows[0])
    is_now = _manifest(trajectories, manifest.keys, blobs, manifest.errors)
    if is_now != manifest:
        raise StoreError(f"rows disagree with their manifest: it says {manifest}, they are {is_now}")
    return trajectories

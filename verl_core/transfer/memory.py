"""MemoryStore: the trajectory store of one process. Invariant: the same contract as TransferQueueStore, held to by
the same tests; rows are kept packed, so that readers get fresh arrays and a row is checked in the same way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.group import GroupTag, Manifest
from verl_core.transfer.interface import Finished
from verl_core.transfer.rows import commit_of, uid_of, verified


class MemoryStore:
    """Usable from any thread of the process."""

    quarantined_tags = 0  # nobody else can write here

    def __init__(self) -> None:
        self._tags: dict[str, GroupTag] = {}
        self._rows: dict[str, bytes] = {}
        self._rung: dict[str, None] = {}
        self._bell = threading.Condition()  # its lock guards everything

    def write_tags(self, tags: Sequence[GroupTag]) -> None:
        """See TrajectoryStore."""
        with self._bell:
            self._tags.update({tag.uid: tag for tag in tags})

    def finish(self, groups: Sequence[Finished]) -> list[GroupTag]:
        """See TrajectoryStore."""
        commits = [commit_of(group) for group in groups]
        with self._bell:
            for tag, blob in commits:
                if blob:
                    self._rows[tag.uid] = bytes(blob)
                self._tags[tag.uid] = tag
                self._rung[tag.uid] = None
            self._bell.notify_all()
        return [tag for tag, _ in commits]

    def tags(self) -> dict[str, GroupTag]:
        """See TrajectoryStore."""
        with self._bell:
            return dict(self._tags)

    def read_tags(self, uids: Sequence[str]) -> dict[str, GroupTag]:
        """See TrajectoryStore."""
        with self._bell:
            return {uid: self._tags[uid] for uid in uids if uid in self._tags}

    def fetch(self, manifests: Sequence[Manifest]) -> list[Trajectory]:
        """See TrajectoryStore."""
        full = [manifest for manifest in manifests if manifest.keys]
        uids = [uid_of(manifest) for manifest in full]
        with self._bell:
            missing = [uid for uid in uids if uid not in self._rows]
            if missing:
                raise StoreError(f"rows of {len(missing)} of {len(uids)} groups are missing: {', '.join(missing[:5])}")
            blobs = [self._rows[uid] for uid in uids]
        return [row for manifest, blob in zip(full, blobs, strict=True) for row in verified(manifest, blob)]

    def clear_groups(self, uids: Sequence[str]) -> None:
        """See TrajectoryStore."""
        with self._bell:
            for uid in uids:
                self._tags.pop(uid, None)

    def clear_rows(self, uids: Sequence[str]) -> None:
        """See TrajectoryStore."""
        with self._bell:
            for uid in uids:
                self._rows.pop(uid, None)

    def reset(self) -> None:
        """See TrajectoryStore."""
        with self._bell:
            self._tags.clear()
            self._rows.clear()
            self._rung.clear()

    def wait(self, timeout_s: float) -> list[str]:
        """See TrajectoryStore."""
        with self._bell:
            self._bell.wait_for(lambda: bool(self._rung), timeout_s)
            rung = list(self._rung)
            self._rung.clear()
            return rung

    def close(self) -> None:
        """See TrajectoryStore. There is nobody else."""

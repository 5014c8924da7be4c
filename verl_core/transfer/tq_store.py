"""TransferQueueStore: the trajectory store that other processes, and other Ray clusters, can join.

Invariant: groups and rows live in partitions of their own, a group's tag is one JSON string that is only ever written
whole, and a terminal tag is written after its rows were acknowledged as readable."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from verl_core.errors import StoreError
from verl_core.trajectory import Trajectory
from verl_core.transfer.client import GROUPS, ROWS, QueueClient
from verl_core.transfer.doorbell import Doorbell
from verl_core.transfer.endpoint import Endpoint
from verl_core.transfer.group import NOWHERE, GroupTag, Manifest
from verl_core.transfer.interface import Finished
from verl_core.transfer.rows import Commit, commit_of, uid_of, verified

LOG = logging.getLogger(__name__)
T = TypeVar("T")
_TAG = "tag"  # TransferQueue copies and walks nested tags in Python: a string costs a tenth
_CALL_BYTES = 64 * 2**20  # moved by one call, so that its deadline does not depend on the batch
_CALL_KEYS = 2000
_BELL_PROOF_S = 2.0


class TransferQueueStore:
    """Usable from any thread of the process that joined. Build it with `join`.

    Attributes:
        quarantined_tags: foreign or half-written keys seen by `tags` and `read_tags` so far.
    """

    def __init__(self, client: QueueClient, bell: Doorbell, listens: bool) -> None:
        self._client, self._bell, self._listens = client, bell, listens
        self._parsed: dict[str, tuple[str, GroupTag]] = {}  # of the last listing: most tags do not change between two
        self.quarantined_tags = 0

    @classmethod
    def join(cls, endpoint: Endpoint | Path, call_timeout_s: float = 30.0, listen: bool = True) -> TransferQueueStore:
        """Join the store at `endpoint`, a document or the file of one.

        Args:
            call_timeout_s: deadline of each call.
            listen: hear the doorbell; only a process that calls `wait` needs it.

        Raises:
            StoreError: TransferQueue is missing, the endpoint is stale, or versions differ.
        """
        where = Endpoint.read(endpoint) if isinstance(endpoint, Path) else endpoint
        client = QueueClient(where, call_timeout_s)
        bell = Doorbell(where.bell_in, where.bell_out, listen)
        if listen and not bell.answers(_BELL_PROOF_S):
            LOG.warning(
                "the store's doorbell at %s does not answer; finished groups are found by polling", where.bell_out
            )
        return cls(client, bell, listen)

    @property
    def endpoint(self) -> Endpoint:
        """Where this store lives, for others to join."""
        return self._client.endpoint

    def write_tags(self, tags: Sequence[GroupTag]) -> None:
        """See TrajectoryStore."""
        for part in _parts(tags):
            self._client.write_tags(GROUPS, {tag.uid: _raw(tag) for tag in part})

    def finish(self, groups: Sequence[Finished]) -> list[GroupTag]:
        """See TrajectoryStore."""
        commits = [commit_of(group) for group in groups]
        return [tag for part in _by_bytes(commits, lambda commit: len(commit[1])) for tag in self._finish(part)]

    def _finish(self, commits: Sequence[Commit]) -> list[GroupTag]:
        """Rows and then, with the places of the rows, tags; one call."""
        tags = {tag.uid: tag for tag, _ in commits}

        def placed(places: Mapping[str, int]) -> dict[str, dict[str, Any]]:
            tags.update({uid: tags[uid].stored_at(place) for uid, place in places.items()})
            return {uid: _raw(tag) for uid, tag in tags.items()}

        self._client.commit({tag.uid: blob for tag, blob in commits if blob}, GROUPS, list(tags), placed)
        if not self._bell.ring(list(tags)):
            LOG.warning("the doorbell took no ring for %d groups; the sampler's poll will find them", len(tags))
        return [tags[tag.uid] for tag, _ in commits]

    def tags(self) -> dict[str, GroupTag]:
        """See TrajectoryStore."""
        old, self._parsed = self._parsed, {}
        for key, raw in self._client.list_tags(GROUPS).items():
            text = raw.get(_TAG)
            if key in old and old[key][0] == text:
                self._parsed[key] = old[key]
            elif (tag := self._tag(key, raw)) is not None:
                self._parsed[key] = str(text), tag
        return {uid: tag for uid, (_, tag) in self._parsed.items()}

    def read_tags(self, uids: Sequence[str]) -> dict[str, GroupTag]:
        """See TrajectoryStore."""
        found: dict[str, GroupTag] = {}
        for part in _parts(uids):
            for key, raw in self._client.read_tags(GROUPS, part).items():
                if (tag := self._tag(key, raw)) is not None:
                    found[key] = tag
        return found

    def _tag(self, key: str, raw: dict[str, Any]) -> GroupTag | None:
        """The whole tag in `raw`; None, and counted, when it is not one."""
        try:
            tag = GroupTag.from_dict(json.loads(raw[_TAG]))
        except (KeyError, TypeError, ValueError):
            tag = None
        if tag is None or tag.uid != key:
            self.quarantined_tags += 1
            return None
        return tag

    def fetch(self, manifests: Sequence[Manifest]) -> list[Trajectory]:
        """See TrajectoryStore."""
        found: list[Trajectory] = []
        full = [manifest for manifest in manifests if manifest.keys]
        for part in _by_bytes(full, lambda manifest: manifest.nbytes):
            places = [manifest.place for manifest in part]
            known = None if NOWHERE in places else places
            blobs = self._client.get_rows([uid_of(manifest) for manifest in part], known)
            for manifest, blob in zip(part, blobs, strict=True):
                found += verified(manifest, blob)
        return found

    def clear_groups(self, uids: Sequence[str]) -> None:
        """See TrajectoryStore."""
        for part in _parts(uids):
            self._client.clear(GROUPS, part)

    def clear_rows(self, uids: Sequence[str]) -> None:
        """See TrajectoryStore."""
        for part in _parts(uids):
            self._client.clear(ROWS, part)

    def reset(self) -> None:
        """See TrajectoryStore."""
        self._client.clear_partition(GROUPS)
        self._client.clear_partition(ROWS)
        if self._listens:
            self._bell.wait(0.0)

    def wait(self, timeout_s: float) -> list[str]:
        """See TrajectoryStore."""
        if not self._listens:
            raise StoreError(
                "this process joined the store with listen=False; join with listen=True to wait for groups"
            )
        return self._bell.wait(timeout_s)

    def close(self) -> None:
        """See TrajectoryStore. Idempotent."""
        self._client.close()
        self._bell.close()


def _raw(tag: GroupTag) -> dict[str, Any]:
    return {_TAG: json.dumps(tag.to_dict())}


def _parts(items: Sequence[T]) -> Iterator[list[T]]:
    """`items` in runs of at most _CALL_KEYS."""
    for start in range(0, len(items), _CALL_KEYS):
        yield list(items[start : start + _CALL_KEYS])


def _by_bytes(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """`items` in runs of about _CALL_BYTES and at most _CALL_KEYS."""
    part: list[T] = []
    size = 0
    for item in items:
        if part and (size + size_of(item) > _CALL_BYTES or len(part) == _CALL_KEYS):
            yield part
            part, size = [], 0
        part.append(item)
        size += size_of(item)
    if part:
        yield part

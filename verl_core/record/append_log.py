"""AppendLog: a file that only grows. Invariant: once a durable `write` returned, its bytes survive any crash; a write
that a crash cut short is never read, and is cut off before the next one. Several processes of one machine may append in
turns.

On object stores, which cannot append, the log is a row of segments `journal-000001.jsonl`, each put whole; there one
process writes at a time.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from verl_core.errors import RecordError
from verl_core.record import disk
from verl_core.record.storage import Storage

WholePrefix = Callable[[bytes], int]
"""Length of the longest prefix that consists of whole records."""

SEGMENT_BYTES = 256 * 1024


class AppendLog(Protocol):
    """One log, opened for appending."""

    cut: int
    """Bytes of torn records cut off so far."""

    def exclusive(self) -> Iterator[bytes]:  # a context manager
        """Hold the log; gives the bytes that were appended since the last look (the first time: all)."""

    def write(self, data: bytes, durable: bool = True) -> None:
        """Append whole records; only while the log is held. What is not durable yet becomes so with the next write that
        is: a later record never survives an earlier one."""

    def close(self) -> None:
        """Let go of the file. Idempotent."""


class LocalLog:
    """One file, guarded by flock."""

    def __init__(self, path: Path, whole: WholePrefix) -> None:
        self._path, self._whole = path, whole
        self._thread = threading.RLock()
        self._seen = self.cut = 0
        disk.make_folder(path.parent)
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._close = weakref.finalize(self, os.close, self._descriptor)  # also when nobody called close()
        if is_new:
            disk.sync(path.parent)

    @contextmanager
    def exclusive(self) -> Iterator[bytes]:
        with self._thread:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield self._catch_up()
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def write(self, data: bytes, durable: bool = True) -> None:
        try:
            disk.write_all(self._descriptor, data)
            if durable:
                os.fsync(self._descriptor)
        except OSError:  # disk full: leave no part behind that a later write would follow
            os.ftruncate(self._descriptor, self._seen)
            raise
        self._seen += len(data)

    def close(self) -> None:
        with self._thread:
            self._close()

    def _catch_up(self) -> bytes:
        """Bytes after the last look. Nobody writes while we hold the lock, so a part of a record is a dead writer's."""
        size = os.fstat(self._descriptor).st_size
        if size < self._seen:
            raise RecordError(f"{self._path} has shrunk from {self._seen} to {size} bytes: somebody else edits it")
        fresh = b""
        while len(fresh) < size - self._seen:
            fresh += os.pread(self._descriptor, size - self._seen - len(fresh), self._seen + len(fresh))
        keep = self._whole(fresh)
        if keep < len(fresh):
            os.ftruncate(self._descriptor, self._seen + keep)
            os.fsync(self._descriptor)
            self.cut += len(fresh) - keep
        self._seen += keep
        return fresh[:keep]


class SegmentLog:
    """Objects `name-000001.ext`, `name-000002.ext`, ...; this process only ever rewrites the segment it created."""

    def __init__(self, storage: Storage, path: str, whole: WholePrefix) -> None:
        self._storage, self._path, self._whole = storage, path, whole
        self._thread = threading.RLock()
        self._segment = b""
        self._number = 0  # 0 = no segment of ours is open
        self._looked = False
        self.cut = 0

    @contextmanager
    def exclusive(self) -> Iterator[bytes]:
        with self._thread:
            old = b"" if self._looked else read_log(self._storage, self._path, self._whole)
            self._looked = True
            yield old

    def write(self, data: bytes, durable: bool = True) -> None:
        grown = self._segment + data
        if self._number and len(grown) <= SEGMENT_BYTES:
            self._storage.put(segment_path(self._path, self._number), grown)
            self._segment = grown
            return
        number = max(self._number, *_segment_numbers(self._storage, self._path), 0) + 1
        while not self._storage.create(segment_path(self._path, number), data):
            number += 1
        self._number, self._segment = number, data

    def close(self) -> None:
        self._number, self._segment = 0, b""


def open_log(storage: Storage, path: str, whole: WholePrefix) -> LocalLog | SegmentLog:
    """The log at `path` (relative), created if missing."""
    return LocalLog(storage.local / path, whole) if storage.local is not None else SegmentLog(storage, path, whole)


def read_log(storage: Storage, path: str, whole: WholePrefix) -> bytes:
    """All whole records, without touching the log; empty if there is none. For readers beside a live writer."""
    if storage.local is not None:
        file = storage.local / path
        data = file.read_bytes() if file.exists() else b""
        return data[: whole(data)]
    parts = [storage.get(segment_path(path, number)) for number in _segment_numbers(storage, path)]
    return b"".join(parts)


def segment_path(path: str, number: int) -> str:
    """`journal.jsonl` → `journal-000003.jsonl`."""
    stem, dot, extension = path.rpartition(".")
    return f"{stem}-{number:06d}{dot}{extension}"


def _segment_numbers(storage: Storage, path: str) -> list[int]:
    folder, _, name = path.rpartition("/")
    stem, _, extension = name.rpartition(".")
    middle = slice(len(stem) + 1, -len(extension) - 1)
    found = [n for n in storage.names(folder) if n.startswith(stem + "-") and n.endswith("." + extension)]
    return sorted(int(n[middle]) for n in found if n[middle].isdigit())

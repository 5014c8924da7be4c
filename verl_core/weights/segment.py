"""One shared-memory file mapped into this process. Invariant: a file is never overwritten while someone reads it.

Readers hold a shared advisory lock on the file (flock), writers an exclusive one. A writer that finds readers makes a
new file under the same name; they keep the old one's pages until they let go. The lock belongs to the open file, which
the mapping shares: it lasts as long as any view of the mapping, and a process that dies lets go by dying.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import zlib
from pathlib import Path

import torch

from verl_core.errors import WeightError
from verl_core.weights.interface import TensorSpec
from verl_core.weights.manifest import DTYPES, nbytes


class Segment:
    """A mapped file; `bytes` is uint8 [capacity]. Views of it must be dropped before `close`."""

    def __init__(self, path: Path, descriptor: int, capacity: int, flags: int) -> None:
        self.path, self.capacity, self._descriptor, self._reserved = path, capacity, descriptor, 0
        self.bytes = torch.frombuffer(mmap.mmap(descriptor, capacity, flags), dtype=torch.uint8)

    @classmethod
    def create(cls, path: Path, capacity: int) -> Segment:
        """A new, exclusively locked file in place of whatever bore the name. Pages are taken by `reserve` only."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, capacity)
        return cls(path, descriptor, capacity, mmap.MAP_SHARED)

    @classmethod
    def open(cls, path: Path, used: int) -> Segment:
        """The first `used` bytes of an existing file, locked for reading; writing to them changes a private copy.

        Raises:
            WeightError: the file is gone, shorter than `used`, or being written.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise WeightError(f"bucket {path} does not exist; was the run's weights folder deleted?") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            size = os.fstat(descriptor).st_size
            if size < used:
                raise WeightError(f"bucket {path} has {size} bytes, the manifest says {used}")
            return cls(path, descriptor, max(1, used), mmap.MAP_PRIVATE)
        except BlockingIOError as error:
            os.close(descriptor)
            raise WeightError(f"bucket {path} is being overwritten by a newer version; read `current` again") from error
        except BaseException:
            os.close(descriptor)
            raise

    def relock(self) -> bool:
        """Lock exclusively for writing; False when someone still reads it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let readers in (or a writer again)."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def reserve(self, used: int) -> None:
        """Take pages for the first `used` bytes now: writing to a full tmpfs through a mapping kills the process. Pages
        once taken stay."""
        if used <= self._reserved:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, used)
            self._reserved = used
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise WeightError(
                f"{self.path.parent} is full: no room for {used} more bytes of weights. Enlarge the shared-memory "
                "file system (docker: --shm-size, Kubernetes: an emptyDir of medium Memory at /dev/shm)."
            ) from error

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """The tensor's bytes as a tensor; shares memory with the file."""
        flat = self.bytes[spec.offset : spec.offset + nbytes(spec)]
        return flat.view(DTYPES[spec.dtype]).view(spec.shape)

    def checksum(self, used: int) -> str:
        """crc32 of the first `used` bytes, 8 hex digits."""
        return f"{zlib.crc32(self.bytes[:used].numpy().data):08x}"

    def close(self) -> None:
        """Unlock and close the file; the mapping lives as long as views of it do."""
        os.close(self._descriptor)
        self.bytes = torch.empty(0, dtype=torch.uint8)

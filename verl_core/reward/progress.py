"""A number in memory shared by two processes. Invariant: what one end wrote the other reads, also after the writer was
killed in the middle of anything else."""

from __future__ import annotations

import mmap
import struct
import tempfile

_NUMBER = struct.Struct("<q")


class Progress:
    """Args:
    descriptor: of the other end's file, inherited; by default a new file without a name.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._file = None
        if descriptor is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._file.truncate(_NUMBER.size)
            descriptor = self._file.fileno()
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _NUMBER.size)

    def write(self, number: int) -> None:
        """No system call: cheap enough for every sample."""
        _NUMBER.pack_into(self._memory, 0, number)

    def read(self) -> int:
        """The number written last, 0 at first."""
        (number,) = _NUMBER.unpack_from(self._memory, 0)
        return int(number)

    def close(self) -> None:
        """Unmap."""
        self._memory.close()
        if self._file is not None:
            self._file.close()

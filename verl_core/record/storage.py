"""Storage: the few operations that a run directory needs, on a local disk or on any fsspec object store.

Invariant: a reader sees a whole object or none. Locally by temp file, fsync and rename; object stores put atomically.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.core import url_to_fs

from verl_core.errors import RecordError
from verl_core.record import disk


class Storage(Protocol):
    """Paths are relative to the root, with `/`."""

    root: str
    local: Path | None

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Write or replace an object, atomically and durably."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists; False if it does. Of several callers at once one wins."""

    def get(self, path: str) -> bytes:
        """The object. Raises RecordError if it does not exist."""

    def exists(self, path: str) -> bool:
        """Whether there is an object or a folder of this name."""

    def names(self, folder: str) -> list[str]:
        """Sorted names directly in a folder, half-written ones left out; empty if it does not exist."""

    def remove(self, path: str) -> None:
        """Delete an object or a folder with all it holds; a missing one is no error."""

    def upload(self, path: str, source: Path) -> None:
        """`put` of a local file."""

    def download(self, path: str, target: Path) -> None:
        """Copy an object, or a folder with all it holds, to a local path that does not exist yet."""


class LocalStorage:
    """A folder of this machine or of a shared filesystem."""

    def __init__(self, root: Path) -> None:
        self.local: Path | None = root
        self.root, self._root = str(root), root

    def put(self, path: str, data: bytes | memoryview) -> None:
        target = self._root / path
        disk.make_folder(target.parent)
        disk.write_file(target, data)

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        disk.make_folder(target.parent)
        temp = target.with_name(disk.temp_name(target.name))
        disk.write_file(temp, data)
        try:
            os.link(temp, target)  # fails if the name is taken, and never shows a part
        except FileExistsError:
            return False
        finally:
            os.unlink(temp)
        disk.sync(target.parent)
        return True

    def get(self, path: str) -> bytes:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            raise RecordError(f"{path} is missing in the run directory {self.root}") from None

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        base = self._root / folder
        if not base.is_dir():
            return []
        return sorted(name for name in os.listdir(base) if not name.startswith(disk.TEMP_PREFIX))

    def remove(self, path: str) -> None:
        disk.remove_tree(self._root / path)

    def upload(self, path: str, source: Path) -> None:
        target = self._root / path
        disk.make_folder(target.parent)
        temp = target.with_name(disk.temp_name(target.name))
        shutil.copyfile(source, temp)
        disk.sync(temp)
        os.replace(temp, target)
        disk.sync(target.parent)

    def download(self, path: str, target: Path) -> None:
        source = self._root / path
        if not source.exists():
            raise RecordError(f"{path} is missing in the run directory {self.root}")
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)


class ObjectStorage:
    """A bucket prefix: s3, gs, abfs, memory, ... Listings are never cached: other processes write too."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, base: str, root: str) -> None:
        self.local: Path | None = None
        self._fs, self._base, self.root = filesystem, base.rstrip("/"), root.rstrip("/")

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._fs.pipe_file(self._full(path), bytes(data))

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(self._full(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def get(self, path: str) -> bytes:
        try:
            return bytes(self._fs.cat_file(self._full(path)))
        except FileNotFoundError:
            raise RecordError(f"{path} is missing in the run directory {self.root}") from None

    def exists(self, path: str) -> bool:
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self._full(path)))

    def names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        base = self._full(folder)
        try:
            found = self._fs.ls(base, detail=False)
        except FileNotFoundError:
            return []
        return sorted({str(name).rstrip("/").rsplit("/", 1)[-1] for name in found if str(name).rstrip("/") != base})

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._fs.rm(self._full(path), recursive=True)

    def upload(self, path: str, source: Path) -> None:
        self._fs.put_file(str(source), self._full(path))

    def download(self, path: str, target: Path) -> None:
        full = self._full(path)
        self._fs.invalidate_cache()
        if self._fs.isfile(full):
            self._fs.get_file(full, str(target))
            return
        inside = self._fs.find(full)
        if not inside:
            raise RecordError(f"{path} is missing in the run directory {self.root}")
        for name in inside:
            copy = target / str(name)[len(full) + 1 :]
            copy.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(name, str(copy))

    def _full(self, path: str) -> str:
        return f"{self._base}/{path}".rstrip("/") if path else self._base


def open_storage(root: str | Path) -> Storage:
    """Storage for a path or an fsspec URL; a local root is created.

    Raises:
        RecordError: no filesystem is known for the URL's protocol.
    """
    try:
        filesystem, base = url_to_fs(str(root))
    except (ImportError, ValueError) as error:
        raise RecordError(f"cannot open the run directory {root}: {error}") from error
    protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    if "file" not in protocols:
        return ObjectStorage(filesystem, base, str(root))
    path = Path(base).resolve()
    disk.make_folder(path)
    return LocalStorage(path)

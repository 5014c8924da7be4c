"""Durable local files. Invariant: a name shows the old content or the new, never a part; what returned survives a power
cut.

All calls that change the disk go through `os`, so that a test can stop the world before any one of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMP_PREFIX = ".tmp-"

_counter = itertools.count()


def temp_name(name: str) -> str:
    """A name beside `name` that no other process or thread uses; `sweep` may delete it once its owner is dead."""
    return f"{TEMP_PREFIX}{name}-{os.getpid()}-{next(_counter)}"


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """File descriptor of `path`, closed on the way out; created files are readable by all (0o644)."""
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """`os.write` until nothing is left."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sync(path: Path) -> None:
    """fsync a file or a folder (of a folder: the names in it)."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def make_folder(path: Path) -> None:
    """Like `mkdir -p`; the names of new folders are durable."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:  # another process was faster
            continue
        sync(folder.parent)


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Replace `path` by `data` atomically and durably. The folder must exist."""
    temp = path.with_name(temp_name(path.name))
    with opened(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        write_all(descriptor, data)
        os.fsync(descriptor)
    os.replace(temp, path)
    sync(path.parent)


def sync_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`, and `folder` itself, children first."""
    for base, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(base, name))
        sync(Path(base))


def remove_tree(path: Path) -> None:
    """Delete a file or a folder with all it holds; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        for base, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(Path(base, name))
            for name in folders:
                inner = Path(base, name)
                os.unlink(inner) if inner.is_symlink() else os.rmdir(inner)
        os.rmdir(path)
    elif path.exists() or path.is_symlink():
        os.unlink(path)


def sweep(folder: Path) -> list[str]:
    """Delete what dead writers left half-written directly in `folder`; returns the names. Only for the owner of the
    run.
    """
    left = sorted(path for path in folder.glob(f"{TEMP_PREFIX}*")) if folder.is_dir() else []
    for path in left:
        remove_tree(path)
    return [path.name for path in left]

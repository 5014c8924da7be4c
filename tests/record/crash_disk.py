"""CrashDisk: a power cut before the n-th change of the disk, with the page cache lost.

Once it struck, every further change raises too: cleanup code of a dead process does not run. What is lost is what no
    fsync
covered: the contents of files (cut to half), and, with `lose_names`, the names in folders: renames are undone, new
    names vanish.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WATCHED = ("open", "write", "mkdir", "rename", "replace", "unlink", "rmdir", "link")


class PowerCut(BaseException):
    """The process is gone."""


class CrashDisk:
    """Patches `os`; counts operations; strikes before operation `stop_at`."""

    def __init__(self, root: Path, stop_at: int, lose_names: bool) -> None:
        self.root, self.stop_at, self.lose_names = root, stop_at, lose_names
        self.count, self.is_dead = 0, False
        self._synced: dict[int, tuple[int, int]] = {}
        self._names = {os.stat(folder).st_ino: set(os.listdir(folder)) for folder, _, _ in os.walk(root)}
        self._renames: list[tuple[Path, Path, Path | None]] = []
        self._attic = root.parent / f"{root.name}-attic"

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in WATCHED:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), name))
        monkeypatch.setattr(os, "fsync", self._fsync)

    def tick(self) -> None:
        if not self.is_dead:
            self.count += 1
            self.is_dead = self.count == self.stop_at
        if self.is_dead:
            raise PowerCut

    def settle(self) -> None:
        """Bring the disk to what the cut left; call it with `os` unpatched."""
        for source, target, backup in reversed(self._renames if self.lose_names else []):
            if target.exists():
                os.rename(target, source)
            if backup is not None:
                os.rename(backup, target)
        self._settle_folder(self.root)

    def _settle_folder(self, folder: Path) -> None:
        for path in list(folder.iterdir()):
            info = path.stat()
            if self.lose_names and path.name not in self._names.get(folder.stat().st_ino, set()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_dir():
                self._settle_folder(path)
            elif self._synced.get(info.st_ino) != (info.st_size, info.st_mtime_ns):
                os.truncate(path, info.st_size // 2)

    def _counted(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_TRUNC):
                return real(*arguments, **options)  # reading changes nothing
            self.tick()
            if name in ("rename", "replace"):
                self._note_rename(Path(arguments[0]), Path(arguments[1]))
            return real(*arguments, **options)

        return call

    def _note_rename(self, source: Path, target: Path) -> None:
        backup = None
        if target.exists():
            self._attic.mkdir(exist_ok=True)
            backup = self._attic / str(len(list(self._attic.iterdir())))
            shutil.copy2(target, backup)
            info, kept = target.stat(), backup.stat()
            self._synced[kept.st_ino] = (kept.st_size, kept.st_mtime_ns) if info.st_ino in self._synced else (-1, -1)
        self._renames.append((source, target, backup))

    def _fsync(self, descriptor: int) -> None:
        self.tick()
        info = os.fstat(descriptor)
        self._synced[info.st_ino] = (info.st_size, info.st_mtime_ns)
        if stat.S_ISDIR(info.st_mode):
            folder = os.readlink(f"/proc/self/fd/{descriptor}")
            self._names[info.st_ino] = set(os.listdir(folder))
            self._renames = [entry for entry in self._renames if str(entry[1].parent) != folder]

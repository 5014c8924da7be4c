"""RunDir: the folder of one run. Invariant: every file in it is published whole, under one fixed layout.

config.yaml                            resolved configuration
journal.jsonl                          every event of every uid
metrics.jsonl                          one row per logged step
steps/000012/trajectories.parquet ...  what each stage gave, then record.json
checkpoints/000012/ ... MANIFEST.json  weights and everything else that changes
latest                                 the pointer, flipped last
report.html
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from verl_core.errors import RecordError
from verl_core.record import disk
from verl_core.record.storage import Storage, open_storage

CONFIG = "config.yaml"
REPORT = "report.html"


class Published(NamedTuple):
    """A published file: path relative to the run directory, and the hex sha256 of its bytes."""

    path: str
    sha256: str


class RunDir:
    """Args:
    root: path or fsspec URL; a local folder is created.
    """

    def __init__(self, root: str | Path) -> None:
        self.storage: Storage = open_storage(root)

    @property
    def root(self) -> str:
        """Absolute path, or the URL."""
        return self.storage.root

    @property
    def local(self) -> Path | None:
        """The folder when it is on a local disk (or shared filesystem), None on an object store."""
        return self.storage.local

    def url(self, path: str) -> str:
        """Full path or URL of a file in here."""
        return f"{self.root}/{path}"

    @staticmethod
    def step_dir(step: int) -> str:
        """`steps/000012`, relative to the root."""
        return f"steps/{step:06d}"

    def steps(self) -> list[int]:
        """Steps that have a folder, in order. Whether a stage of them is done its own file says."""
        return sorted(int(name) for name in self.storage.names("steps") if name.isdigit())

    def publish_bytes(self, path: str, data: bytes | memoryview) -> Published:
        """Write or replace `path` atomically and durably."""
        self.storage.put(path, data)
        return Published(path, hashlib.sha256(data).hexdigest())

    def publish_file(self, path: str, source: Path) -> Published:
        """Same, from a local file."""
        self.storage.upload(path, source)
        return Published(path, file_sha256(source))

    def read(self, path: str, sha256: str = "") -> bytes:
        """The bytes of `path`.

        Raises:
            RecordError: it is missing, or `sha256` is given and differs.
        """
        data = self.storage.get(path)
        found = hashlib.sha256(data).hexdigest() if sha256 else ""
        if found != sha256:
            raise RecordError(f"{self.url(path)} was changed or damaged: sha256 {found}, recorded {sha256}")
        return data

    def exists(self, path: str) -> bool:
        """Whether `path` was published."""
        return self.storage.exists(path)

    def names(self, folder: str = "") -> list[str]:
        """Sorted names in a folder of the run directory."""
        return self.storage.names(folder)

    def remove(self, path: str) -> None:
        """Delete a file or folder; a missing one is no error."""
        self.storage.remove(path)

    def sweep(self) -> list[str]:
        """Delete half-written files of dead processes; only the owner of the run may. Returns their paths."""
        if self.local is None:
            return []
        folders = ["", "checkpoints", "steps", *(self.step_dir(step) for step in self.steps())]
        return [f"{folder}/{name}".lstrip("/") for folder in folders for name in disk.sweep(self.local / folder)]


def file_sha256(path: Path) -> str:
    """Hex sha256 of a local file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

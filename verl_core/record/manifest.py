"""MANIFEST.json of a checkpoint. Invariant: a checkpoint is whole exactly when its manifest and all files in it
match.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_core.errors import CheckpointError
from verl_core.record.canonical import compact, pretty
from verl_core.record.rundir import file_sha256

NAME = "MANIFEST.json"
FORMAT = 1


@dataclass(frozen=True)
class CheckpointManifest:
    """Attributes:
    step: global step whose update is in the weights.
    files: sha256 by path relative to the folder.
    nbytes: size by path.
    extra: what the trainer keeps beside the files (data position, controllers, journal position), JSON.
    config: the resolved configuration, None when the writer gave none.
    saved_at: unix seconds.
    """

    step: int
    files: dict[str, str]
    nbytes: dict[str, int]
    extra: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    saved_at: float = 0.0

    @classmethod
    def of_folder(
        cls, folder: Path, step: int, extra: dict[str, Any], config: dict[str, Any] | None, saved_at: float
    ) -> CheckpointManifest:
        """Hash every file below `folder`."""
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME)
        names = [path.relative_to(folder).as_posix() for path in files]
        hashes = dict(zip(names, (file_sha256(path) for path in files), strict=True))
        sizes = dict(zip(names, (path.stat().st_size for path in files), strict=True))
        return cls(step, hashes, sizes, extra, config, saved_at)

    def to_json(self) -> bytes:
        """Canonical JSON that carries its own digest."""
        body = {"format": FORMAT, **asdict(self)}
        return pretty({**body, "digest": _digest(body)})

    @classmethod
    def from_json(cls, data: bytes) -> CheckpointManifest:
        """Inverse of `to_json`.

        Raises:
            CheckpointError: damaged, or of another version.
        """
        try:
            body: dict[str, Any] = json.loads(data)
            digest, version = body.pop("digest"), body["format"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{NAME} is damaged ({error!r})") from error
        if version != FORMAT:
            raise CheckpointError(f"{NAME} has format {version}, this version reads format {FORMAT}")
        if digest != _digest(body):
            raise CheckpointError(f"{NAME} does not match its own digest")
        del body["format"]
        return cls(**body)

    def check(self, folder: Path) -> None:
        """Compare the files in `folder`.

        Raises:
            CheckpointError: names the first file that is missing, or has another size or content.
        """
        for name, sha256 in self.files.items():
            path = folder / name
            if not path.is_file():
                raise CheckpointError(f"{name} is missing")
            if path.stat().st_size != self.nbytes[name]:
                raise CheckpointError(f"{name} has {path.stat().st_size} bytes, {self.nbytes[name]} were saved")
            if file_sha256(path) != sha256:
                raise CheckpointError(f"{name} is damaged: its sha256 is not the saved one")


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(compact(body)).hexdigest()

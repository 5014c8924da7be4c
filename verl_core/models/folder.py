"""Publishing a model folder, and finding it again. Invariant: a folder under its final name is complete and on disk, or
is not there at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """Give an empty scratch folder beside `final`; when the block ends without an error it takes that name.

    A folder that already bears the name is replaced. On an error the scratch folder is deleted and `final` is
    untouched.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield scratch
        _open_to_readers(scratch)
        _sync(scratch)
        _swap(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def weights_file_sha256(folder: Path) -> str:
    """Hex digest of the folder's safetensors file."""
    digest = hashlib.sha256()
    with (folder / WEIGHTS).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weight_files(folder: str | Path) -> list[tuple[str, int, int]]:
    """Name, size in bytes and time of the last change (ns) of each safetensors file, in name order: what tells a folder
    from itself with other weights without reading them."""
    files = sorted(Path(folder).glob("*.safetensors"))
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def write_account(folder: Path, account: str, recipe: dict[str, Any], result: dict[str, Any]) -> None:
    """Note in the file `account` what the folder was made from and what came out, the sha256 of its weights too."""
    (folder / account).write_text(json.dumps({"recipe": recipe, "result": result}, indent=2))


def made_before(folder: Path, account: str, recipe: dict[str, Any]) -> dict[str, Any] | None:
    """The result that an earlier call noted, if it was of this recipe and its folder still holds the weights it wrote;
    with `path` where the folder lies now."""
    if not (folder / account).is_file():
        return None
    found = json.loads((folder / account).read_text())
    result: dict[str, Any] = found["result"]
    if found["recipe"] != recipe or result["sha256"] != weights_file_sha256(folder):
        return None
    return result | {"path": str(folder)}


def _open_to_readers(folder: Path) -> None:
    """Scratch folders and safetensors files are made private; a published model is for whoever may enter its parent."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _sync(folder: Path) -> None:
    for path in [*(entry for entry in folder.rglob("*") if entry.is_file()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _swap(scratch: Path, final: Path) -> None:
    if final.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{final.name}.old.", dir=final.parent))
        final.rename(aside / "folder")
        scratch.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        scratch.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Which weights an adapter belongs to. Invariant: the hash is of the base's weight files, wherever they lie."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from verl_core.engine.loading import WEIGHT_PATTERNS
from verl_core.errors import ModelError


def base_sha256(path: str) -> str:
    """Hex sha256 over names and bytes of the weight files of a model folder, or of a `.gguf` file. Read once per
    process as long as no file changes.

    Raises:
        ModelError: there are none.
    """
    place = Path(path)
    found = [file for pattern in WEIGHT_PATTERNS for file in place.glob(pattern)] if place.is_dir() else [place]
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise ModelError(f"{path!r} has no weights: name a folder with {' or '.join(WEIGHT_PATTERNS)}, or a .gguf file")
    return _digest(tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{Path(path).name} {size}\n".encode())
        with Path(path).open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()

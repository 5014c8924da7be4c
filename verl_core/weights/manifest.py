"""The manifest as JSON, and the pointer to the newest. Invariant: `current` names only sets of weights that are whole.

A manifest is data from another process: reading it checks every field before anyone maps memory by it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from verl_core.errors import RecordError, WeightError
from verl_core.record.storage import open_storage
from verl_core.weights.interface import PULLED, TensorSpec, WeightManifest

POINTER = "current"
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
}

_SPEC, _MANIFEST = ([item.name for item in fields(kind)] for kind in (TensorSpec, WeightManifest))


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32. Raises WeightError for a dtype that is not transported."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise WeightError(f"weights of dtype {name} cannot be transported; known: {', '.join(DTYPES)}")
    return name


def nbytes(spec: TensorSpec) -> int:
    """Bytes of the tensor. Raises WeightError for an unknown dtype."""
    if spec.dtype not in DTYPES:
        raise WeightError(f"{spec.name} has unknown dtype {spec.dtype!r}; known: {', '.join(DTYPES)}")
    return math.prod(spec.shape) * DTYPES[spec.dtype].itemsize


def check_manifest(manifest: WeightManifest) -> None:
    """Raise WeightError if a tensor lies outside its bucket, a name comes twice, or checksums are missing."""
    names = set()
    for spec in manifest.tensors:
        if spec.name in names:
            raise WeightError(f"weight {spec.name} comes twice in version {manifest.version}")
        names.add(spec.name)
        if not 0 <= spec.bucket < len(manifest.bucket_bytes):
            raise WeightError(f"{spec.name} is said to be in bucket {spec.bucket} of {len(manifest.bucket_bytes)}")
        if spec.offset < 0 or spec.offset + nbytes(spec) > manifest.bucket_bytes[spec.bucket]:
            raise WeightError(f"{spec.name} reaches outside bucket {spec.bucket}")
    if manifest.backend in PULLED and len(manifest.checksums) != len(manifest.bucket_bytes):
        raise WeightError(f"{len(manifest.checksums)} checksums for {len(manifest.bucket_bytes)} buckets")


def to_dict(manifest: WeightManifest) -> dict[str, Any]:
    """Plain JSON values. (`dataclasses.asdict` copies deeply: ten times slower.)"""
    tensors = [{name: getattr(spec, name) for name in _SPEC} for spec in manifest.tensors]
    return {**{name: getattr(manifest, name) for name in _MANIFEST}, "tensors": tensors}


def from_dict(value: dict[str, Any]) -> WeightManifest:
    """The inverse of `to_dict`, through JSON as well (where tuples became lists). Raises WeightError."""
    try:
        tensors = tuple(
            TensorSpec(t["name"], t["dtype"], tuple(int(n) for n in t["shape"]), int(t["bucket"]), int(t["offset"]))
            for t in value["tensors"]
        )
        manifest = WeightManifest(
            version=int(value["version"]),
            backend=value["backend"],
            location=str(value["location"]),
            tensors=tensors,
            bucket_bytes=tuple(int(n) for n in value["bucket_bytes"]),
            checksums=tuple(str(c) for c in value["checksums"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightError(f"not a manifest of weights: {error!r}") from error
    check_manifest(manifest)
    return manifest


def write_current(folder: str | Path, manifest: WeightManifest) -> None:
    """Flip the pointer. In a folder: temporary file beside it, fsync, rename; behind a URL one put."""
    if _is_url(folder):
        open_storage(folder).put(POINTER, json.dumps(to_dict(manifest)).encode())
        return
    folder = Path(folder)
    descriptor, name = tempfile.mkstemp(prefix=f".{POINTER}.", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(to_dict(manifest)))  # json.dump encodes in Python: ten times slower
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / POINTER)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def read_current(folder: str | Path) -> WeightManifest | None:
    """The newest published manifest, or None when nothing was published yet.

    Raises:
        WeightError: the pointer is there but is not a manifest.
    """
    try:
        text = _text(folder)
    except (FileNotFoundError, RecordError):
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise WeightError(
            f"{folder}/{POINTER} is not JSON: {error}. Delete it to start from the model folder."
        ) from error
    return from_dict(value)


def forget_current(folder: str | Path) -> None:
    """Take the pointer away: what an earlier run of the same name published must not be served."""
    if _is_url(folder):
        open_storage(folder).remove(POINTER)
        return
    with contextlib.suppress(FileNotFoundError):
        (Path(folder) / POINTER).unlink()


def _text(folder: str | Path) -> str:
    if _is_url(folder):
        return open_storage(folder).get(POINTER).decode()
    return (Path(folder) / POINTER).read_text(encoding="utf-8")


def _is_url(folder: str | Path) -> bool:
    return "://" in str(folder)

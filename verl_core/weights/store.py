"""Weights through storage that both clusters reach: a shared folder or any fsspec URL, such as the run directory.

    weights/00000012/0000.bucket     bytes of the tensors of version 12, as they are
    weights/current                  manifest of the newest whole version

Invariant: `current` is flipped last and names a whole version, and the one before it stays readable until the next
publication. Servers pull; every bucket is compared with its checksum before a tensor of it is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from verl_core.errors import RecordError, WeightError
from verl_core.record.storage import open_storage
from verl_core.weights.interface import TensorSpec, WeightManifest
from verl_core.weights.layout import BucketLayout
from verl_core.weights.manifest import DTYPES, check_manifest, nbytes, read_current, write_current


class StoreSender:
    """Writes one object per bucket. Owner: rank 0 of the policy workers.

    Args:
        folder: path or URL, for this run alone.
        bucket_bytes: limit of a bucket, of which this process holds one at a time; a larger tensor makes a larger one.
    """

    def __init__(self, folder: str | Path, bucket_bytes: int) -> None:
        self._folder, self._limit = str(folder), bucket_bytes
        BucketLayout(bucket_bytes)  # refuses a bad limit now rather than at the first publication
        self._storage = open_storage(folder)

    def publish(self, named: Iterable[tuple[str, torch.Tensor]], version: int) -> WeightManifest:
        """See WeightSender. Tensors are taken one at a time.

        Raises:
            WeightError: a name comes twice, or a dtype is not transported; `current` is unmoved.
        """
        layout, checksums = BucketLayout(self._limit), []
        name_of_version = f"{version:08d}"
        bucket, flushed = bytearray(), 0
        for name, tensor in named:
            spec = layout.place(name, tensor)
            if spec.bucket > flushed:
                checksums.append(self._put(name_of_version, flushed, bucket))
                bucket, flushed = bytearray(), spec.bucket
            bucket.extend(bytes(spec.offset - len(bucket)))
            bucket.extend(_bytes_of(tensor))
        if not layout.tensors:
            raise WeightError(f"weight version {version} has no tensors: there is nothing to publish")
        checksums.append(self._put(name_of_version, flushed, bucket))
        location = f"{self._folder.rstrip('/')}/{name_of_version}"
        manifest = WeightManifest(
            version, "store", location, tuple(layout.tensors), tuple(layout.used), tuple(checksums)
        )
        before = read_current(self._folder)
        write_current(self._folder, manifest)
        self._sweep({name_of_version, "" if before is None else before.location.rpartition("/")[2]})
        return manifest

    def close(self) -> None:
        """Nothing is held. What was published stays, for servers that restart."""

    def _put(self, version: str, bucket: int, data: bytearray) -> str:
        self._storage.put(f"{version}/{bucket:04d}.bucket", memoryview(data))
        return f"{zlib.crc32(data):08x}"

    def _sweep(self, kept: set[str]) -> None:
        """Delete the other versions, those that a crash left half-written among them."""
        for name in self._storage.names(""):
            if name.isdigit() and name not in kept:
                self._storage.remove(name)


class StoreReceiver:
    """Reads what a StoreSender published."""

    def receive(self, manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
        """See WeightReceiver. One bucket is held at a time."""
        check_manifest(manifest)
        if manifest.backend != "store":
            raise WeightError(f"weights published by {manifest.backend!r} cannot be read from storage")
        for bucket in range(len(manifest.bucket_bytes)):
            data = _bucket(manifest, bucket)
            for spec in manifest.tensors:
                if spec.bucket == bucket:
                    yield spec.name, _view(data, spec)

    def mapped(self, manifest: WeightManifest) -> dict[str, torch.Tensor]:
        """All tensors at once, every checksum verified. They share memory with nobody."""
        return dict(self.receive(manifest))


def _bucket(manifest: WeightManifest, bucket: int) -> bytearray:
    used, expected = manifest.bucket_bytes[bucket], manifest.checksums[bucket]
    root, _, version = manifest.location.rpartition("/")
    what = f"bucket {bucket} of weight version {manifest.version}"
    try:
        data = bytearray(open_storage(root).get(f"{version}/{bucket:04d}.bucket"))
    except RecordError as error:
        raise WeightError(f"{what} is not there any more; read `current` again, or publish again: {error}") from error
    found = f"{zlib.crc32(data):08x}"
    if (len(data), found) != (used, expected):
        raise WeightError(
            f"{what} has {len(data)} bytes with checksum {found}, published were {used} with {expected}: it was "
            "damaged. Publish again."
        )
    return data


def _view(data: bytearray, spec: TensorSpec) -> torch.Tensor:
    dtype, size = DTYPES[spec.dtype], nbytes(spec)
    if not size:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8, count=size, offset=spec.offset).view(dtype).view(spec.shape)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy().data)

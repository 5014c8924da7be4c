"""Moving weights from trainer to servers: the manifest and the two ends.

Invariant: a server answers with the old version or the new one, never a mix. A push that fails leaves it untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

Backend = Literal["shm", "ipc", "nccl", "store"]
PULLED: frozenset[Backend] = frozenset({"shm", "store"})  # servers fetch what was published; the others are sent to


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a push: Hugging Face name, torch dtype name, shape, byte offset inside its bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A published set of weights.

    Attributes:
        version: +1 at each publication; 0 is the start.
        backend: how to receive.
        location: shm, store: folder or URL holding one file per bucket; ipc, nccl: rendezvous string.
        tensors: all of them, in sending order.
        bucket_bytes: size of each bucket.
        checksums: per bucket, hex digest of its bytes (shm, store); empty for device transports.
    """

    version: int
    backend: Backend
    location: str
    tensors: tuple[TensorSpec, ...]
    bucket_bytes: tuple[int, ...]
    checksums: tuple[str, ...] = ()


class WeightSender(Protocol):
    """Trainer side. Owner: rank 0 of the policy workers (device transports: every rank takes part)."""

    def publish(self, named: Iterable[tuple[str, torch.Tensor]], version: int) -> WeightManifest:
        """Make the weights available and flip the `current` pointer last. Blocks until they may be received; the
        tensors may be changed again as soon as it returns. The previous version stays readable until the next call."""

    def close(self) -> None:
        """Free what is held."""


class WeightReceiver(Protocol):
    """Server side."""

    def receive(self, manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, bucket by bucket, each bucket's checksum verified before its first tensor is yielded.
        Tensors are views, valid until the next one of another bucket is asked for.

        Raises:
            WeightError: bucket missing or checksum wrong.
        """

"""Fetching what was published, by whichever backend it was. Invariant: nothing is given out whose checksum is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from verl_core.weights.interface import WeightManifest
from verl_core.weights.segment import Segment
from verl_core.weights.shm import ShmReceiver
from verl_core.weights.store import StoreReceiver


def received(manifest: WeightManifest) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, bucket by bucket; see WeightReceiver. Raises WeightError for a backend that sends by itself."""
    return StoreReceiver().receive(manifest) if manifest.backend == "store" else ShmReceiver().receive(manifest)


def mapped(manifest: WeightManifest) -> tuple[dict[str, torch.Tensor], list[Segment]]:
    """All tensors at once, and what the caller closes when done with them."""
    if manifest.backend == "store":
        return StoreReceiver().mapped(manifest), []
    return ShmReceiver().mapped(manifest)

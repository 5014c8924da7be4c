"""Where each tensor of a push lies. Invariant: offsets are 64-byte aligned, tensors of a bucket never overlap.

A bucket is the largest piece that is mapped, checked or sent at once; it is closed before the tensor that would
overfill it. Only a single tensor larger than the limit makes a larger bucket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from verl_core.errors import WeightError
from verl_core.weights.interface import TensorSpec
from verl_core.weights.manifest import dtype_name, nbytes

ALIGNMENT = 64


@dataclass
class BucketLayout:
    """Places tensors one after another, without knowing the later ones.

    Attributes:
        limit: bytes of a bucket.
        tensors: placed so far, in order.
        used: bytes used of each bucket so far.
    """

    limit: int
    tensors: list[TensorSpec] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.limit < ALIGNMENT:
            raise WeightError(f"buckets of {self.limit} bytes are too small; give at least {ALIGNMENT}")

    def place(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        """The tensor's place; only dtype and shape are looked at. Raises WeightError for a name that comes twice."""
        if name in self._names:
            raise WeightError(f"weight {name} was given twice; publish every parameter once")
        spec = TensorSpec(name, dtype_name(tensor.dtype), tuple(tensor.shape), 0, 0)
        size, bucket = nbytes(spec), len(self.used) - 1
        offset = -(-self.used[bucket] // ALIGNMENT) * ALIGNMENT if self.used else 0
        if not self.used or offset + size > self.limit:
            bucket, offset = bucket + 1, 0
            self.used.append(0)
        spec = TensorSpec(name, spec.dtype, spec.shape, bucket, offset)
        self.used[bucket] = offset + size
        self.tensors.append(spec)
        self._names.add(name)
        return spec


def layout_of(named: Iterable[tuple[str, torch.Tensor]], limit: int) -> BucketLayout:
    """The layout of a whole set of tensors (meta tensors and DTensors will do: only dtype and full shape are read)."""
    layout = BucketLayout(limit)
    for name, tensor in named:
        layout.place(name, tensor)
    return layout

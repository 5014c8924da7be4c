"""One number for a set of weights. Invariant: equal digests mean equal names, dtypes, shapes and bytes; ranks do not
matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def tensor_digest(name: str, tensor: torch.Tensor) -> bytes:
    """sha256 over name, dtype, shape and bytes."""
    digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def weights_digest(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hex sha256 over the tensors' digests in name order; the order of `named` plays no part."""
    digests = {name: tensor_digest(name, tensor) for name, tensor in named}
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()

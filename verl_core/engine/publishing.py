"""What the policy publishes, and with which sender. Invariant: all tensors go out under Hugging Face names, tied ones
once, in `actor_rollout_ref.model.dtype`, in the model's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from verl_core.config.schema import RunConfig
from verl_core.engine.network import Network
from verl_core.engine.ranks import Ranks
from verl_core.engine.sharding import trained, whole_parameters
from verl_core.errors import PolicyError
from verl_core.weights.interface import WeightManifest, WeightSender

Named = Sequence[tuple[str, torch.Tensor]]

# (rank, what will be sent as meta tensors) -> the rank's sender; None where a rank only helps to gather.
SenderFactory = Callable[[int, Named], WeightSender | None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def folder_sender(config: RunConfig, device: torch.device, folder: str) -> SenderFactory | None:
    """The sender that needs no servers, since they fetch what it publishes; None when the backend is one between
    devices (`use_sender` later).
    """
    from verl_core.weights.interface import PULLED
    from verl_core.weights.sender import run_backend, sender_for

    backend = run_backend(config, device.type)
    if backend not in PULLED:
        return None
    bucket_bytes = config.actor_rollout_ref.rollout.update_weights_bucket_megabytes * 2**20
    return lambda rank, named: sender_for(backend, bucket_bytes, folder=folder) if rank == 0 else None


class Outgoing(Protocol):
    """Tensors to publish. `declared` and `tensors` agree on names, shapes and order."""

    def declared(self) -> list[tuple[str, torch.Size]]:
        """Name and full shape of each."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and full tensor, one at a time. Collective."""


class TrainedWeights:
    """What is trained, as it is."""

    def __init__(self, model: Network) -> None:
        self._model = model

    def declared(self) -> list[tuple[str, torch.Size]]:
        """See Outgoing."""
        return [(name, parameter.shape) for name, parameter in trained(self._model)]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See Outgoing."""
        return whole_parameters(self._model)


class Publisher:
    """Gathers the weights over the ranks and hands them to the sender.

    Args:
        dtype: of the published tensors; the trained ones stay float32.
        factory: makes the rank's sender at the first publication.
    """

    def __init__(self, outgoing: Outgoing, ranks: Ranks, dtype: torch.dtype, factory: SenderFactory | None) -> None:
        self._outgoing, self._ranks, self._dtype = outgoing, ranks, dtype
        self._factory = factory
        self._sender: WeightSender | None = None
        self._ready = False

    def use(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on."""
        self.close()
        self._factory = factory

    def publish(self, version: int) -> WeightManifest | None:
        """Send the current weights. Collective. Returns the manifest on ranks with a sender.

        Raises:
            PolicyError: nobody said how to publish.
            WeightError: from the sender.
        """
        if self._factory is None:
            raise PolicyError(
                "no weight sender: this backend sends to servers, give them with use_sender before publishing"
            )
        if not self._ready:
            declared = [
                (name, torch.empty(shape, dtype=self._dtype, device="meta"))
                for name, shape in self._outgoing.declared()
            ]
            self._sender, self._ready = self._factory(self._ranks.rank, declared), True
        named = self._named()
        try:
            return None if self._sender is None else self._sender.publish(named, version)
        finally:
            for _ in named:  # a sender that gave up half way must not leave the other ranks waiting in a gather
                pass

    def close(self) -> None:
        """Let go of the sender."""
        if self._sender is not None:
            self._sender.close()
        self._sender, self._ready = None, False

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._outgoing.tensors():
            yield name, tensor.to(self._dtype)

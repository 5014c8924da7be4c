"""RewardModelWorker: the Ray actor around one copy of a reward model. Invariant: it has no state but where the model
is, so Ray may start it again at any time and a call may be repeated.

A worker that shares its device keeps the model on the host except between `wake` and `sleep`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_core.config.schema import RewardModelConfig
from verl_core.engine.publishing import DTYPES
from verl_core.engine.reward_network import RewardNetwork, padded_rows, reward_network
from verl_core.errors import ResourceError
from verl_core.trajectory import Int32


@dataclass(frozen=True, slots=True)
class RewardModelFacts:
    """What the model can read.

    Attributes:
        vocabulary: token ids it knows.
        max_positions: longest row; 0 = it does not say.
        pid: process of the worker.
        awake: whether the model is on its device.
    """

    vocabulary: int
    max_positions: int
    pid: int
    awake: bool


class RewardModelWorker:
    """Lives in a Ray actor with one thread. The model is read on the first call, so that a folder that cannot be used
    is an error of that call.

    Args:
        device: cpu or cuda.
        shared: the device is also the trainer's and the servers'.
        workers: of this model on this host, which share its cores.
    """

    def __init__(self, settings: RewardModelConfig, device: str, shared: bool, workers: int, identity: str) -> None:
        self._settings, self._shared, self._identity = settings, shared, identity
        self._device = torch.device(device)
        self._model: RewardNetwork | None = None
        self._awake = False
        if device == "cpu":
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))

    def identity(self) -> str:
        """What it was started with; also the sign of life."""
        return self._identity

    def facts(self) -> RewardModelFacts:
        """See RewardModelFacts. Raises ModelError: the folder cannot be used."""
        model = self._loaded()
        if not self._shared:
            self.wake()
        return RewardModelFacts(model.vocabulary, model.max_positions, os.getpid(), self._awake)

    def wake(self) -> None:
        """The model is on its device when it returns; nothing when it is."""
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise ResourceError("the reward model's worker sees no GPU: look at its Ray actor's resources")
        self._loaded().to(self._device)
        self._awake = True

    def sleep(self) -> None:
        """Give the device's memory back; nothing when asleep."""
        self._loaded().to("cpu")
        self._awake = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def score(self, rows: Sequence[Int32]) -> list[float]:
        """The score of each row, in order: one forward pass. NaN where the model gives that."""
        if not self._awake:
            self.wake()
        model = self._loaded()
        scores: list[float] = model(*padded_rows(rows, model.pad_id, self._device)).float().cpu().tolist()
        return scores

    def _loaded(self) -> RewardNetwork:
        if self._model is None:
            self._model = reward_network(self._settings.model_path, DTYPES[self._settings.dtype])
            self._model.requires_grad_(False)
        return self._model

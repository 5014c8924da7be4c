"""RewardWorker: the Ray actor in front of one reward process. It imports neither torch nor vllm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from verl_core.config import stable_hash
from verl_core.config.schema.reward import RewardConfig
from verl_core.reward.process import RewardProcess
from verl_core.reward.wire import Packed


class RewardWorker:
    """Lives in a Ray actor with one thread; scoring has no state, so Ray may restart it and repeat a call."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._process = RewardProcess(config)

    def identity(self) -> str:
        """What it was started with; also the sign of life."""
        return identity_of(self._config)

    def load(self, sources: Sequence[str]) -> None:
        """Import the functions of these data sources, so that the first step does not wait for it."""
        self._process.load(sources)

    def score(self, samples: Sequence[Packed], most_failures: int | None = None) -> list[Packed]:
        """One reward per sample, in order, both packed; see RewardProcess."""
        return self._process.score_packed(samples, most_failures)

    def pids(self) -> tuple[int, int]:
        """Process ids of the actor and of its reward process (0 when there is none)."""
        return os.getpid(), self._process.pid


def identity_of(config: RewardConfig) -> str:
    """Equal for workers that may stand in for each other."""
    return stable_hash(asdict(config))

"""The policy as supervised fine-tuning trains it, in this process or as Ray actors. Invariant: everything but the
objective is the policy's: ranks, micro-batches, schedule, clipping, checkpoints, adapters."""

from __future__ import annotations

from typing import ClassVar

from verl_core.engine.local import LocalPolicy
from verl_core.engine.rank_worker import RankWorker
from verl_core.engine.training import Training, supervised_training
from verl_core.engine.worker import PolicyWorker
from verl_core.engine.worker_group import PolicyGroup


class SftWorker(PolicyWorker):
    """One rank."""

    def training(self) -> Training:
        """See RankWorker."""
        return supervised_training(self._config, self._total)


class LocalSft(LocalPolicy):
    """One rank in this process, without Ray."""

    worker: ClassVar[type[PolicyWorker]] = SftWorker


class SftGroup(PolicyGroup):
    """Ray actors."""

    worker: ClassVar[type[RankWorker]] = SftWorker

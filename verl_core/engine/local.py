"""LocalPolicy and LocalCritic: the engines inside this process, one rank, no Ray. For tests, tools and benchmarks."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.critic_worker import CriticWorker
from verl_core.engine.interface import LogProbs
from verl_core.engine.publishing import SenderFactory
from verl_core.engine.rank_worker import RankWorker
from verl_core.engine.scorer import merged, merged_values
from verl_core.engine.worker import PolicyWorker
from verl_core.errors import PolicyError, ResourceError
from verl_core.trajectory import Float32
from verl_core.weights.interface import WeightManifest

Worker = TypeVar("Worker", bound=RankWorker)


class _Local(Generic[Worker]):
    """Implements TrainedEngine, on one rank of this process. Raises ResourceError when the configuration wants more."""

    def __init__(self, kind: type[Worker], config: RunConfig, total_steps: int, *arguments: Any) -> None:
        if config.world_size != 1:
            raise ResourceError(f"{config.world_size} ranks do not fit in one process: use the group")
        self._worker = kind(config, 0, total_steps, *arguments)
        self._worker.start()

    def steps_done(self) -> int:
        """See TrainedEngine."""
        return self._worker.status().steps_done

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See TrainedEngine."""
        return self._worker.update(batch, step)

    def save(self, folder: str) -> None:
        """See TrainedEngine."""
        self._worker.save(folder)

    def load(self, folder: str) -> None:
        """See TrainedEngine."""
        self._worker.load(folder)

    def reset(self) -> None:
        """See TrainedEngine."""
        self._worker.reset()

    def weights_sha256(self) -> str:
        """See TrainedEngine."""
        return self._worker.weights_sha256()

    def shutdown(self) -> None:
        """See TrainedEngine."""
        self._worker.close()


class LocalPolicy(_Local[PolicyWorker]):
    """Implements PolicyEngine, on a CPU unless told otherwise."""

    worker: ClassVar[type[PolicyWorker]] = PolicyWorker

    def __init__(self, config: RunConfig, total_steps: int, weights_folder: str, device: str = "cpu") -> None:
        super().__init__(self.worker, config, total_steps, weights_folder, device)

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, [self._worker.old_log_probs(batch)], with_entropy=True)

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, [self._worker.ref_log_probs(batch)], with_entropy=False)

    def publish(self, version: int) -> WeightManifest:
        """See PolicyEngine."""
        manifest = self._worker.publish(version)
        if manifest is None:
            raise PolicyError("the sender gave no manifest")
        return manifest

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on."""
        self._worker.use_sender(factory)


class LocalCritic(_Local[CriticWorker]):
    """Implements CriticEngine, on a CPU unless told otherwise."""

    def __init__(self, config: RunConfig, total_steps: int, device: str = "cpu") -> None:
        super().__init__(CriticWorker, config, total_steps, device)

    def values(self, batch: TrainBatch) -> Float32:
        """See CriticEngine."""
        return merged_values(batch, [self._worker.values(batch)])

"""LocalPolicy: the policy engine inside this process, one rank, no Ray. For tests, tools and the benchmark."""

from __future__ import annotations

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.interface import LogProbs
from verl_core.engine.publishing import SenderFactory
from verl_core.engine.scorer import merged
from verl_core.engine.worker import PolicyWorker
from verl_core.errors import PolicyError, ResourceError
from verl_core.weights.interface import WeightManifest


class LocalPolicy:
    """Implements PolicyEngine, on a CPU unless told otherwise. Raises ResourceError when the configuration wants more
    than one rank."""

    def __init__(self, config: RunConfig, total_steps: int, weights_folder: str, device: str = "cpu") -> None:
        if config.world_size != 1:
            raise ResourceError(f"{config.world_size} ranks do not fit in one process: use PolicyGroup")
        self._worker = PolicyWorker(config, 0, total_steps, weights_folder, device)
        self._worker.start()

    def steps_done(self) -> int:
        """See PolicyEngine."""
        return self._worker.status().steps_done

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, [self._worker.old_log_probs(batch)], with_entropy=True)

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, [self._worker.ref_log_probs(batch)], with_entropy=False)

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See PolicyEngine."""
        return self._worker.update(batch, step)

    def publish(self, version: int) -> WeightManifest:
        """See PolicyEngine."""
        manifest = self._worker.publish(version)
        if manifest is None:
            raise PolicyError("the sender gave no manifest")
        return manifest

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on."""
        self._worker.use_sender(factory)

    def save(self, folder: str) -> None:
        """See PolicyEngine."""
        self._worker.save(folder)

    def load(self, folder: str) -> None:
        """See PolicyEngine."""
        self._worker.load(folder)

    def reset(self) -> None:
        """See PolicyEngine."""
        self._worker.reset()

    def weights_sha256(self) -> str:
        """See PolicyEngine."""
        return self._worker.weights_sha256()

    def shutdown(self) -> None:
        """See PolicyEngine."""
        self._worker.close()

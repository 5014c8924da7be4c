"""PolicyGroup and CriticGroup: the engines over Ray actors `policy-{rank}` and `critic-{rank}`."""

from __future__ import annotations

from typing import ClassVar

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.critic_worker import CriticWorker
from verl_core.engine.interface import LogProbs
from verl_core.engine.publishing import SenderFactory
from verl_core.engine.rank_group import ActorOptions, RankGroup
from verl_core.engine.rank_worker import RankWorker
from verl_core.engine.rpc import call_all
from verl_core.engine.scorer import merged, merged_values
from verl_core.engine.worker import PolicyWorker
from verl_core.errors import PolicyError
from verl_core.trajectory import Float32
from verl_core.weights.interface import WeightManifest


class PolicyGroup(RankGroup):
    """Implements PolicyEngine."""

    worker: ClassVar[type[RankWorker]] = PolicyWorker

    @classmethod
    def attach_or_launch(
        cls,
        config: RunConfig,
        namespace: str,
        total_steps: int,
        actor_options: ActorOptions,
        weights_folder: str,
        device: str,
    ) -> PolicyGroup:
        """See `RankGroup.found_or_launched`.

        Args:
            weights_folder: where rank 0 publishes.
            device: cpu or cuda, of every rank.
        """
        return cls.found_or_launched(config, namespace, total_steps, actor_options, (weights_folder, device))

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, self._call("old_log_probs", self._sent(batch)), with_entropy=True)

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return merged(batch, self._call("ref_log_probs", self._sent(batch)), with_entropy=False)

    def publish(self, version: int) -> WeightManifest:
        """See PolicyEngine."""
        manifests = [manifest for manifest in self._call("publish", version) if manifest is not None]
        if not manifests:
            raise PolicyError("no rank has a weight sender")
        first: WeightManifest = manifests[0]
        return first

    def meeting_point(self) -> tuple[str, int]:
        """Address of rank 0's host and a free port there, for a sender that servers have to reach."""
        limit = self._config.trainer.init_timeout_s
        where: tuple[str, int] = call_all(self._actors[:1], "free_port", (), limit, self._noun)[0]
        return where

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on; the factory is pickled to every rank."""
        self._call("use_sender", factory)


class CriticGroup(RankGroup):
    """Implements CriticEngine."""

    worker: ClassVar[type[RankWorker]] = CriticWorker

    @classmethod
    def attach_or_launch(
        cls, config: RunConfig, namespace: str, total_steps: int, actor_options: ActorOptions, device: str
    ) -> CriticGroup:
        """See `RankGroup.found_or_launched`; `device` is that of every rank."""
        return cls.found_or_launched(config, namespace, total_steps, actor_options, (device,))

    def values(self, batch: TrainBatch) -> Float32:
        """See CriticEngine."""
        return merged_values(batch, self._call("values", self._sent(batch)))

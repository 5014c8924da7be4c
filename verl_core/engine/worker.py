"""PolicyWorker: one rank of the policy, with the frozen reference and the sender of its weights. Invariant: with an
adapter the reference is the policy without it, and no second model is held."""

from __future__ import annotations

from typing import ClassVar

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.engine.adapted import AdaptedPolicy, MergedWeights
from verl_core.engine.loading import load_model
from verl_core.engine.model import PolicyModel, check_head
from verl_core.engine.publishing import DTYPES, Outgoing, Publisher, SenderFactory, TrainedWeights, folder_sender
from verl_core.engine.rank_worker import RankWorker
from verl_core.engine.scorer import Share, score
from verl_core.engine.sharding import shard
from verl_core.engine.training import Training, policy_training
from verl_core.weights.adapter import adapter_of
from verl_core.weights.interface import WeightManifest


class PolicyWorker(RankWorker):
    """Policy, optimizer and, when the run needs one, the frozen reference, on one rank.

    Args:
        rank, total_training_steps, device, share_cores: see RankWorker.
        weights_folder: where weights are published on this host.
    """

    noun: ClassVar[str] = "policy"
    _model: PolicyModel

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        total_training_steps: int,
        weights_folder: str,
        device: str,
        share_cores: bool = False,
    ) -> None:
        super().__init__(config, rank, total_training_steps, device, share_cores)
        self._folder = weights_folder

    def training(self) -> Training:
        """See RankWorker."""
        return policy_training(self._config, self._total)

    @property
    def start_folder(self) -> str:
        """See RankWorker."""
        return self._config.actor_rollout_ref.model.path

    def build(self) -> PolicyModel:
        """See RankWorker."""
        model = self._read()
        check_head(model)
        if self._config.actor_rollout_ref.model.enable_gradient_checkpointing:
            model.checkpoint_activations()
        return model

    def start(self, host: str = "", port: int = 0) -> None:
        """See RankWorker; also the reference and the sender."""
        super().start(host, port)
        apart = self._config.needs_reference and not isinstance(self._model, AdaptedPolicy)
        self._reference = self._frozen() if apart else None
        factory = folder_sender(self._config, self._ranks.device, self._folder)
        dtype = DTYPES[self._config.actor_rollout_ref.model.dtype]
        self._publisher = Publisher(self._outgoing(), self._ranks, dtype, factory)

    def old_log_probs(self, batch: TrainBatch) -> Share:
        """This rank's rows under the current weights, with entropy. Collective."""
        self._refuse_unsettled()
        squares = self._config.needs_squares
        return score(self._model, self._ranks, batch, self._forward_budget, with_entropy=True, with_squares=squares)

    def ref_log_probs(self, batch: TrainBatch) -> Share:
        """This rank's rows under the reference. Collective.

        Raises:
            ValueError: the run has no reference.
        """
        if self._config.needs_reference and isinstance(self._model, AdaptedPolicy):
            with self._model.off():
                return score(self._model, self._ranks, batch, self._forward_budget, with_entropy=False)
        if self._reference is None:
            raise ValueError("this run has no reference: set algorithm.use_kl_in_reward or actor.use_kl_loss")
        return score(self._reference, self._ranks, batch, self._forward_budget, with_entropy=False)

    def publish(self, version: int) -> WeightManifest | None:
        """See PolicyEngine. Collective; None on ranks that have no sender."""
        self._refuse_unsettled()
        return self._publisher.publish(version)

    def use_sender(self, factory: SenderFactory) -> None:
        """Publish through another sender from now on; needed for transports between devices."""
        self._publisher.use(factory)

    def close(self) -> None:
        """Leave the group and free the sender."""
        self._publisher.close()
        super().close()

    @property
    def _tokenizer(self) -> str:
        return self.start_folder

    def _trained(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Nothing in the warm-up of the critic: the step counts, the weights stay."""
        warming = step <= self._config.trainer.critic_warmup
        return {"actor/updates": 0.0} if warming else super()._trained(batch, step)

    @property
    def _forward_budget(self) -> int:
        return self._config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu

    def _read(self) -> PolicyModel:
        settings, temperature = self._config.actor_rollout_ref.model, self._config.actor_rollout_ref.rollout.temperature
        model, dtype, adapter = load_model(self.start_folder), DTYPES[settings.dtype], adapter_of(settings)
        if adapter is None:
            return PolicyModel(model, temperature, dtype)
        seed, merged = self._config.trainer.seed, settings.lora.save_merged
        return AdaptedPolicy(model, temperature, dtype, adapter, self.start_folder, seed, merged)

    def _outgoing(self) -> Outgoing:
        if isinstance(self._model, AdaptedPolicy) and self._config.actor_rollout_ref.model.lora.merge:
            return MergedWeights(self._model)
        return TrainedWeights(self._model)

    def _frozen(self) -> PolicyModel:
        reference = self._read()
        reference.requires_grad_(False)
        shard(reference, self._ranks)
        return reference

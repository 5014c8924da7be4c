"""RunConfig: the whole resolved configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from verl_core.config.names import GREEDY_ESTIMATORS, SQUARES_ESTIMATORS, VALUE_ESTIMATORS
from verl_core.config.schema.actor import ActorConfig, ModelConfig, RefConfig
from verl_core.config.schema.algorithm import AlgorithmConfig
from verl_core.config.schema.cluster import RayConfig
from verl_core.config.schema.critic import CriticConfig
from verl_core.config.schema.data import DataConfig
from verl_core.config.schema.distillation import DistillationConfig
from verl_core.config.schema.reward import RewardConfig
from verl_core.config.schema.reward_training import RewardTrainingConfig
from verl_core.config.schema.rollout import RolloutConfig
from verl_core.config.schema.sft import SftConfig
from verl_core.config.schema.trainer import TrainerConfig
from verl_core.config.schema.warm_start import WarmStartConfig


@dataclass
class ActorRolloutRefConfig:
    """The policy in its three roles."""

    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass
class RunConfig:
    """Everything that decides a run. Two runs with equal RunConfig, data and code differ only by hardware noise."""

    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    reward_training: RewardTrainingConfig = field(default_factory=RewardTrainingConfig)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy exists in this run."""
        return self.algorithm.use_kl_in_reward or self.actor_rollout_ref.actor.use_kl_loss

    @property
    def needs_critic(self) -> bool:
        """Whether a critic exists in this run."""
        follows = self.algorithm.adv_estimator in VALUE_ESTIMATORS
        return follows if self.critic.enable is None else self.critic.enable

    @property
    def needs_squares(self) -> bool:
        """Whether old log-probs come with the squared probabilities of their distribution, summed."""
        return self.algorithm.adv_estimator in SQUARES_ESTIMATORS

    @property
    def greedy_session(self) -> int | None:
        """Number of the session of a training group that is decoded greedily, to be a baseline and never trained on.
        None where the estimator reads no such baseline."""
        greedy = self.algorithm.adv_estimator in GREEDY_ESTIMATORS
        return self.actor_rollout_ref.rollout.n if greedy else None

    @property
    def sessions_per_prompt(self) -> int:
        """Sessions of a training group: rollout.n, and the greedy one."""
        return self.actor_rollout_ref.rollout.n + (self.greedy_session is not None)

    @property
    def uses_task_rewards(self) -> bool:
        """Whether the policy learns from the reward function, and not from teachers alone."""
        return not self.distillation.enabled or self.distillation.distillation_loss.use_task_rewards

    @property
    def critic_path(self) -> str:
        """Folder that the critic starts from."""
        return self.critic.model.path or self.actor_rollout_ref.model.path

    @property
    def world_size(self) -> int:
        """Ranks of the trainer."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node

    @property
    def num_devices(self) -> int:
        """Devices of the run: the trainer's, and those of the rollout alone."""
        rollout = self.actor_rollout_ref.rollout
        alone = rollout.nnodes * (rollout.n_gpus_per_node or self.trainer.n_gpus_per_node)
        return self.world_size + alone

    @property
    def trains_reward_model(self) -> bool:
        """Whether a run makes its reward model first."""
        return self.reward_training.enable and self.reward.reward_model.enable

    @property
    def reward_devices(self) -> int:
        """Devices, or workers on a CPU, of the reward model alone; 0 where it has none or shares the trainer's."""
        model = self.reward.reward_model
        if not (model.enable and model.enable_resource_pool):
            return 0
        return model.nnodes * (model.n_gpus_per_node or self.trainer.n_gpus_per_node)

    @property
    def colocates_reward_model(self) -> bool:
        """Whether a reward model takes turns with the servers on the trainer's devices."""
        return self.reward.reward_model.enable and not self.reward.reward_model.enable_resource_pool

    @property
    def max_model_len(self) -> int:
        """Tokens a server must be able to hold for one sequence."""
        given = self.actor_rollout_ref.rollout.max_model_len
        return self.data.max_prompt_length + self.data.max_response_length if given is None else given

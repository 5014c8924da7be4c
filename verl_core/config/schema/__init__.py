"""The schema: one dataclass per section, defaults included. Pure data; no import of torch, ray or vllm.

A key exists here only if something reads it. Names are verl's where the thing is the same.
"""

from verl_core.config.schema.actor import ActorConfig, LoraConfig, ModelConfig, OptimConfig, PolicyLossConfig, RefConfig
from verl_core.config.schema.algorithm import AlgorithmConfig, FilterGroupsConfig, KLControlConfig
from verl_core.config.schema.async_modes import (
    ColocateAsyncConfig,
    HybridRolloutConfig,
    SamplerConfig,
    SeparateAsyncConfig,
)
from verl_core.config.schema.cluster import GroupConfig, RayConfig
from verl_core.config.schema.correction import RolloutCorrectionConfig
from verl_core.config.schema.critic import CriticConfig, CriticModelConfig, CriticSettings
from verl_core.config.schema.data import DataConfig, PrepareConfig, SamplingConfig
from verl_core.config.schema.distillation import (
    DistillationConfig,
    DistillationLossConfig,
    TeacherInferenceConfig,
    TeacherModelConfig,
)
from verl_core.config.schema.reward import CustomRewardConfig, RewardConfig, RewardModelConfig
from verl_core.config.schema.reward_training import RewardTrainingConfig
from verl_core.config.schema.rollout import AgentConfig, MultiTurnConfig, RolloutConfig, ValConfig
from verl_core.config.schema.run import ActorRolloutRefConfig, RunConfig
from verl_core.config.schema.sft import SftConfig
from verl_core.config.schema.trainer import BufferConfig, TrainerConfig, V1Config
from verl_core.config.schema.warm_start import WarmStartConfig

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AgentConfig",
    "AlgorithmConfig",
    "BufferConfig",
    "ColocateAsyncConfig",
    "CriticConfig",
    "CriticModelConfig",
    "CriticSettings",
    "CustomRewardConfig",
    "DataConfig",
    "DistillationConfig",
    "DistillationLossConfig",
    "FilterGroupsConfig",
    "GroupConfig",
    "HybridRolloutConfig",
    "KLControlConfig",
    "LoraConfig",
    "ModelConfig",
    "MultiTurnConfig",
    "OptimConfig",
    "PolicyLossConfig",
    "PrepareConfig",
    "RayConfig",
    "RefConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RewardTrainingConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "SamplerConfig",
    "SamplingConfig",
    "SeparateAsyncConfig",
    "SftConfig",
    "TeacherInferenceConfig",
    "TeacherModelConfig",
    "TrainerConfig",
    "V1Config",
    "ValConfig",
    "WarmStartConfig",
]

"""`algorithm.*`: which advantage, and where the KL to the reference goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl_core.config.schema.correction import RolloutCorrectionConfig


@dataclass
class KLControlConfig:
    """Coefficient of the KL penalty in the reward.

    Attributes:
        type: `fixed`, or `adaptive` (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).
        kl_coef: start value, reward units per nat.
        horizon: adaptive only; samples over which the error is corrected.
        target_kl: adaptive only; nats per token, mean over rows.
    """

    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = 0.001
    horizon: float = 10_000.0
    target_kl: float = 0.1


@dataclass
class FilterGroupsConfig:
    """Dynamic sampling of DAPO: groups whose sessions all got the same are dropped and others generated instead.

    Attributes:
        enable: score groups as they arrive and filter them.
        metric: what is compared: reward, score or seq_reward (one thing: the whole score), or the name of a part of the
            reward, such as acc.
        max_num_gen_batches: batches that are generated for one step at most; 0 = as long as one group passes in every
            four batches.
        when_capped: what happens when that many were generated and the batch is not full: `error`, or `train` on what
            passed.
    """

    enable: bool = False
    metric: str = "reward"
    max_num_gen_batches: int = 0
    when_capped: Literal["error", "train"] = "error"


@dataclass
class AlgorithmConfig:
    """Attributes:
    adv_estimator: name in the registry of advantage estimators; docs/algorithms.md has their formulas.
    gamma: discount per token of the policy.
    lam: lambda of GAE.
    norm_adv_by_std_in_grpo: False is the Dr. GRPO form (no division by the group's standard deviation).
    gdpo_reward_keys: parts of the reward that gdpo normalises one by one, as the reward function names them.
    gdpo_reward_weights: one weight per key; empty = 1 each.
    use_kl_in_reward: subtract kl_ctrl.kl_coef x KL(rollout policy, reference) from token rewards.
        Excludes actor.use_kl_loss.
    kl_penalty: estimator of that KL: kl (k1), abs, mse (k2), low_var_kl (k3), or one of these with a trailing `+`.
    """

    adv_estimator: str = "grpo"
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    gdpo_reward_keys: list[str] = field(default_factory=list)
    gdpo_reward_weights: list[float] = field(default_factory=list)
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)

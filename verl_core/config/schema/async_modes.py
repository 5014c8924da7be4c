"""`trainer.v1.{sampler,colocate_async,separate_async}`: how far generation may run ahead of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class SamplerConfig:
    """Staleness. Counted in weight versions, from the oldest token of a group to the weights that train on it; verl
    counts steps since dispatch.

    Attributes:
        max_off_policy_threshold: largest staleness; null = no bound.
        max_off_policy_strategy: `drop` = a group that is older is dropped, and a new prompt served in its place;
            `wait` = training waits for groups that would become older; `admission` = a group starts only while
            (threshold + 1) batches are under way; `off` = no bound.
    """

    max_off_policy_threshold: int | None = 8
    max_off_policy_strategy: Literal["drop", "wait", "admission", "off"] = "drop"


@dataclass
class ColocateAsyncConfig:
    """Attributes:
    num_warmup_batches: batches served ahead of the first step; fractions count prompts.
    """

    num_warmup_batches: float = 1.0


@dataclass
class HybridRolloutConfig:
    """Lending the trainer's idle devices to the rollout.

    Attributes:
        enable_switch: whether to lend at all.
        switch_threshold_ratio: share of a batch that must be there before the devices go back to training.
        adaptive_switch_threshold: let the share follow how long training waits.
        switch_threshold_step_up, switch_threshold_step_down: how far it moves.
        switch_threshold_release_steps: steps in a row with (or without) waiting before it moves.
        switch_cost_window_size: switches whose cost is averaged.
    """

    enable_switch: bool = False
    switch_threshold_ratio: float = 0.4
    adaptive_switch_threshold: bool = True
    switch_threshold_step_up: float = 0.05
    switch_threshold_step_down: float = 0.03
    switch_threshold_release_steps: int = 2
    switch_cost_window_size: int = 3


@dataclass
class SeparateAsyncConfig:
    """Attributes:
    num_warmup_batches: batches served ahead of the first step; fractions count prompts.
    parameter_sync_step: mini-updates between two publications of the weights; times ppo_mini_batch_size it makes
        data.train_batch_size. null = as many as there are.
    """

    num_warmup_batches: float = 1.0
    parameter_sync_step: int | None = None
    hybrid_rollout: HybridRolloutConfig = field(default_factory=HybridRolloutConfig)

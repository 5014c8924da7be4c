"""`reward.*`: who scores a trajectory, how long that may take, and how many failures a run survives."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CustomRewardConfig:
    """A user's function instead of the registry: `path` is a .py file or a dotted module, `name` the function in it."""

    path: str = ""
    name: str = "compute_score"


@dataclass
class RewardConfig:
    """Attributes:
    num_workers: scoring processes.
    timeout_s: budget of one sample; a sample over it is quarantined and its process replaced.
    error_budget: share of a step's samples that may be quarantined before the run stops.
    """

    num_workers: int = 1
    timeout_s: float = 10.0
    error_budget: float = 0.1
    custom_reward_function: CustomRewardConfig = field(default_factory=CustomRewardConfig)

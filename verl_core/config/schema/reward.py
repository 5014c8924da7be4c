"""`reward.*`: who scores a trajectory, how long that may take, and how many failures a run survives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class CustomRewardConfig:
    """A user's function instead of the registry: `path` is a .py file or a dotted module, `name` the function in it."""

    path: str = ""
    name: str = "compute_score"


@dataclass
class OverlongBufferConfig:
    """DAPO's soft punishment of long responses; see `verl_core.reward.overlong`.

    Attributes:
        enable: take it off the score while training.
        len: the last so many tokens of data.max_response_length in which it grows.
        penalty_factor: what the longest response loses.
    """

    enable: bool = False
    len: int = 0
    penalty_factor: float = 1.0


@dataclass
class RemoteRewardConfig:
    """An HTTP service that scores; see `verl_core.reward.remote`.

    Attributes:
        url: http or https; empty = none.
        max_concurrency: requests under way at a time.
        requests_per_second: of all together, retries included; null = no limit.
        retries: attempts beyond the first.
        timeout_s: of one attempt.
        deadline_s: of one sample, from its first attempt to its last, waits between them included.
    """

    url: str = ""
    max_concurrency: int = 8
    requests_per_second: float | None = None
    retries: int = 3
    timeout_s: float = 10.0
    deadline_s: float = 60.0


@dataclass
class RewardModelConfig:
    """A sequence classifier with one label that scores what was sampled; see `verl_core.reward.model_scorer`.

    Attributes:
        enable: it scores, alone or as the part of `composite` that says `reward_model: true`.
        enable_resource_pool: it has devices of its own, nnodes x n_gpus_per_node; else it takes turns with the
            servers on the trainer's.
        n_gpus_per_node: null = trainer.n_gpus_per_node. On a CPU: workers.
        model_path: folder in the form of transformers, with its tokenizer.
        dtype: of its matrix products.
        max_token_len_per_gpu: token budget of a batch, padding included.
        timeout_s: of one batch; its samples are quarantined after it and its worker is started again.
        in_validation: it scores validation too; else the other parts, or the rows' verifiers, do.
    """

    enable: bool = False
    enable_resource_pool: bool = False
    nnodes: int = 0
    n_gpus_per_node: int | None = None
    model_path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_token_len_per_gpu: int = 16384
    timeout_s: float = 120.0
    in_validation: bool = True


@dataclass
class SandboxConfig:
    """Limits of one run of a policy's code; see `verl_core.reward.sandbox`.

    Attributes:
        cpu_s, wall_s: seconds.
        memory_mb: address space of a process.
        processes: of the program at a time.
        file_mb: largest file, and largest output.
        require_isolation: refuse to score where the kernel gives no network and process namespace.
    """

    cpu_s: int = 4
    wall_s: float = 6.0
    memory_mb: int = 512
    processes: int = 16
    file_mb: int = 8
    require_isolation: bool = False


@dataclass
class RewardConfig:
    """Attributes:
    num_workers: scoring processes.
    timeout_s: budget of one sample; a sample over it is quarantined and its process replaced.
    error_budget: share of a step's samples that may be quarantined before the run stops.
    composite: named parts whose weighted sum is the score: mappings with `name`, `weight` (1 when left out) and one of
        `verifier` (a data source, or `row`: the row's own), `function` (`file.py:name` or `module:name`), `remote`
        (true) and `reward_model` (true). Empty = one function.
    """

    num_workers: int = 1
    timeout_s: float = 10.0
    error_budget: float = 0.1
    custom_reward_function: CustomRewardConfig = field(default_factory=CustomRewardConfig)
    composite: list[dict[str, Any]] = field(default_factory=list)
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    remote: RemoteRewardConfig = field(default_factory=RemoteRewardConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)

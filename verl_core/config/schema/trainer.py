"""`trainer.*`: how long, how often, where to, and which mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl_core.config.schema.async_modes import ColocateAsyncConfig, SamplerConfig, SeparateAsyncConfig


@dataclass
class BufferConfig:
    """The replay buffer and its store.

    Attributes:
        lease_s: a running group older than this is re-issued under a new uid.
        stall_timeout_s: sample() gives up when nothing finished for this long, with a dump of the stuck groups.
        max_reissues: attempts per group beyond the first.
        poll_s: slow safety net behind the doorbell.
        call_timeout_s: deadline of one TransferQueue call.
        num_storage_units: TransferQueue storage processes.
        max_groups: groups under way or waiting to be trained on; null = what the staleness bound allows.
        max_megabytes: of the groups that wait to be trained on; null = no limit. Above it nothing new is served.
    """

    lease_s: float = 900.0
    stall_timeout_s: float = 1200.0
    max_reissues: int = 2
    poll_s: float = 1.0
    call_timeout_s: float = 30.0
    num_storage_units: int = 1
    max_groups: int | None = None
    max_megabytes: int | None = None


@dataclass
class V1Config:
    """Attributes:
    trainer_mode: sync, colocate_async or separate_async.
    """

    trainer_mode: str = "sync"
    buffer: BufferConfig = field(default_factory=BufferConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    colocate_async: ColocateAsyncConfig = field(default_factory=ColocateAsyncConfig)
    separate_async: SeparateAsyncConfig = field(default_factory=SeparateAsyncConfig)

    @property
    def warmup_batches(self) -> float:
        """Batches served ahead of the first step, in the chosen mode."""
        ahead = {
            "colocate_async": self.colocate_async.num_warmup_batches,
            "separate_async": self.separate_async.num_warmup_batches,
        }
        return ahead.get(self.trainer_mode, 0.0)


@dataclass
class TrainerConfig:
    """Attributes:
    project_name: stands before experiment_name on the progress bar.
    use_v1: False = the legacy path: the batch is held in memory, no TransferQueue.
    total_training_steps: null = total_epochs x (rows // train_batch_size).
    device: `auto` = cuda when there is one.
    nnodes x n_gpus_per_node: ranks of the trainer; on a CPU each rank is a process with its share of the cores.
    critic_warmup: first steps in which the critic is trained and the policy is not.
    save_freq, test_freq: steps; -1 = only at the end (save) or never (test).
    resume_mode: `auto` = newest whole checkpoint of this run directory, `disable` = refuse a used directory,
        `resume_path` = start from resume_from_path.
    default_local_dir: root of run directories; any fsspec URL. The run's own is <root>/<experiment_name>.
    max_actor_ckpt_to_keep: null = all.
    steps_per_node: Flyte; 1 = four nodes per step, more = one node per chunk of steps.
    init_timeout_s: budget for actors, engines and store to come up.
    """

    project_name: str = "verl-flyte"
    experiment_name: str = "run"
    use_v1: bool = True
    v1: V1Config = field(default_factory=V1Config)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nnodes: int = 1
    n_gpus_per_node: int = 1
    total_epochs: int = 30
    total_training_steps: int | None = None
    seed: int = 1
    critic_warmup: int = 0
    save_freq: int = -1
    test_freq: int = -1
    val_before_train: bool = True
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    resume_from_path: str = ""
    default_local_dir: str = "runs"
    max_actor_ckpt_to_keep: int | None = None
    logger: list[str] = field(default_factory=lambda: ["console", "jsonl"])
    steps_per_node: int = 1
    init_timeout_s: float = 300.0

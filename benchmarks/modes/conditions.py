"""The conditions of the runs, fixed before the first measurement. Invariant: every mode gets `devices` devices in all.

Lengths: log-normal, the 99th percentile 8 times the median, capped at 16 times the median.

Speeds are chosen so that generation without its tail takes 3.3 times as long as training on the same devices. At that
ratio one device in four is a training device in `separate_async`, and the rollout is what limits it (by a tenth). They
are also chosen so that what this machine really has to do (tiny model, loop, Ray, files) is small against simulated
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["sync", "colocate_async", "separate_async"]
RECIPE = str(Path(__file__).with_name("run.yaml"))
_ROLLOUT, _V1 = "actor_rollout_ref.rollout", "trainer.v1"


@dataclass(frozen=True)
class Conditions:
    """Attributes:
    devices: in all.
    slots: requests that a server generates at the same time.
    token_s: seconds that a token of one request takes, whatever runs beside it.
    groups, sessions: a step trains on groups x sessions responses.
    median: tokens; p99 and cap follow from it.
    train_tokens_per_s: of one device: forward and backward over prompt and response.
    forward_share: cost of computing log-probs, as a share of that.
    steps: of a run.
    first, last: the measured window is from the end of step `first` to the end of step `last`: without the start, when
        servers fill, and without the end, when nothing new is served any more and they drain.
    """

    devices: int = 4
    slots: int = 4
    token_s: float = 0.2
    groups: int = 12
    sessions: int = 4
    median: int = 8
    train_tokens_per_s: float = 145.0
    forward_share: float = 1 / 3
    steps: int = 24
    first: int = 4
    last: int = 19
    warmup_batches: float = 2.0
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    rollout_devices: int = 3

    @property
    def p99(self) -> int:
        """8 x median."""
        return 8 * self.median

    @property
    def cap(self) -> int:
        """16 x median."""
        return 16 * self.median


CONDITIONS = Conditions()


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        rollout: its devices; 0 = all devices take turns.
        steps: None = as the conditions say.
    """

    mode: Mode
    seed: int
    rollout: int = 0
    steps: int | None = None

    @property
    def name(self) -> str:
        """Of its directory."""
        split = f"_{self.rollout}" if self.mode == "sync" and self.rollout else ""
        return f"{self.mode}{split}-{self.seed}"

    def servers(self, conditions: Conditions) -> int:
        """Devices that generate."""
        return self.rollout or conditions.devices

    def trainers(self, conditions: Conditions) -> int:
        """Devices that train."""
        return conditions.devices - self.rollout

    def total_steps(self, conditions: Conditions) -> int:
        """Steps of the run."""
        return self.steps or conditions.steps


def overrides(run: Run, conditions: Conditions, root: Path) -> list[str]:
    """Settings on top of `run.yaml`."""
    settings = {
        "trainer.default_local_dir": root,
        "trainer.experiment_name": run.name,
        "trainer.total_training_steps": run.total_steps(conditions),
        "trainer.seed": run.seed,
        f"{_V1}.trainer_mode": run.mode,
        "data.seed": run.seed,
        "data.train_batch_size": conditions.groups,
        "data.max_response_length": conditions.cap,
        "actor_rollout_ref.actor.ppo_mini_batch_size": conditions.groups,
        f"{_ROLLOUT}.seed": run.seed,
        f"{_ROLLOUT}.n": conditions.sessions,
        f"{_ROLLOUT}.num_servers": run.servers(conditions),
        f"{_ROLLOUT}.max_num_seqs": conditions.slots,
        f"{_ROLLOUT}.scripted_delay_s": conditions.token_s,
        f"{_ROLLOUT}.scripted_lengths.median": conditions.median,
        f"{_ROLLOUT}.scripted_lengths.p99": conditions.p99,
        f"{_ROLLOUT}.scripted_lengths.cap": conditions.cap,
    }
    if run.mode != "sync":
        settings[f"{_V1}.{run.mode}.num_warmup_batches"] = conditions.warmup_batches
    return [f"{key}={value}" for key, value in settings.items()]

"""The real loop at the simulator's parameters: the product's trainer, Ray, TransferQueue and ScriptedEngine, in real
seconds. Invariant: only lengths, pace of sampling and pace of training are set; whatever else takes time is the
product's own, and is measured.

`python -m benchmarks.simulate.real MODE FOLDER` runs one mode and writes FOLDER/MODE.json.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.runs import LIMIT_S, finish, kill, start
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import Empirical
from benchmarks.simulate.run import Setup
from verl_core.batch import TrainBatch
from verl_core.config import RunConfig, resolve
from verl_core.engine.interface import LogProbs, PolicyEngine
from verl_core.record.trajectories import read_trajectories
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.run import ready
from verl_core.trainer.session import Session

CONFIG = Path(__file__).with_name("real.yaml")
TOKEN_S = 0.25  # of sampling: long beside what a token costs this machine
MEDIAN, P99, CAP = 4.0, 32.0, 64
TRAIN_TOKEN_S = 0.02
LOG_PROB_SHARE = 0.25
BATCH, SESSIONS, SERVERS = 12, 2, 2
STEPS = {"sync": 9, "colocate_async": 16, "separate_async": 16}
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Measured:
    """Attributes:
    closed_at: seconds since the first step began, one per step.
    staleness: mean of each step.
    lengths: of each group, by ordinal.
    """

    closed_at: tuple[float, ...]
    staleness: tuple[float, ...]
    lengths: tuple[tuple[int, ...], ...]

    def setup(self, mode: str, overhead_s: float) -> Setup:
        """The same run for the simulator."""
        return Setup(
            mode=mode,
            lengths=Empirical(self.lengths),
            servers=SERVERS,
            server=ServerSpeed(t0=TOKEN_S),
            trainer=TrainerSpeed(token_s=TRAIN_TOKEN_S, step_s=overhead_s),
            batch_size=BATCH,
            n=SESSIONS,
            steps=STEPS[mode],
            threshold=None,
            strategy="off",
        )


class PacedPolicy:
    """A policy whose work takes TRAIN_TOKEN_S per response token at least; the rest is the real one's."""

    def __init__(self, policy: PolicyEngine) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """Its share."""
        began = time.monotonic()
        result = self._policy.old_log_probs(batch)
        _until(began + LOG_PROB_SHARE * TRAIN_TOKEN_S * len(batch.response_ids))
        return result

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """The rest."""
        began = time.monotonic()
        metrics = self._policy.update(batch, step)
        _until(began + (1.0 - LOG_PROB_SHARE) * TRAIN_TOKEN_S * len(batch.response_ids))
        return metrics


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def overrides(mode: str, folder: Path) -> list[str]:
    """What a user would write on the command line."""
    ahead = [] if mode == "sync" else ["trainer.v1.sampler.max_off_policy_threshold=null"]
    return [
        f"trainer.v1.trainer_mode={mode}",
        *ahead,
        f"data.train_batch_size={BATCH}",
        f"data.max_response_length={CAP}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={BATCH}",
        f"{_ROLLOUT}.n={SESSIONS}",
        f"{_ROLLOUT}.num_servers={SERVERS}",
        f"{_ROLLOUT}.scripted_delay_s={TOKEN_S}",
        f"{_ROLLOUT}.scripted_lengths.median={MEDIAN}",
        f"{_ROLLOUT}.scripted_lengths.p99={P99}",
        f"{_ROLLOUT}.scripted_lengths.cap={CAP}",
        f"trainer.total_training_steps={STEPS[mode]}",
        "trainer.init_timeout_s=900",
        f"trainer.default_local_dir={folder}",
        f"trainer.experiment_name={mode}",
    ]


def measure(folder: Path) -> dict[str, Measured]:
    """All modes: sync beside the two others, since a run sleeps most of its time. What the folder holds already is not
    measured again.

    Raises:
        RuntimeError: a run failed; carries the end of its log.
    """
    missing = [mode for mode in STEPS if not (folder / f"{mode}.json").exists()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for mode in missing:
            running[mode] = _begin(mode, folder)
            if mode != "sync":
                finish(running[mode], folder / f"{mode}.log", LIMIT_S)
        if "sync" in running:
            finish(running["sync"], folder / "sync.log", LIMIT_S)
    finally:
        for process in running.values():
            if process.poll() is None:
                kill(process)
    return {mode: _read(folder / f"{mode}.json") for mode in STEPS}


def overhead(sync: Measured) -> float:
    """Seconds of a step that are neither sampling nor training: median over the steps of the synchronous run, where
    both are known exactly: the longest response's tokens, and all tokens."""
    left = []
    for step in range(1, len(sync.closed_at)):
        groups = sync.lengths[step * BATCH : (step + 1) * BATCH]
        took = sync.closed_at[step] - sync.closed_at[step - 1]
        sampling = TOKEN_S * max(max(group) for group in groups)
        left.append(took - sampling - TRAIN_TOKEN_S * sum(sum(group) for group in groups))
    return statistics.median(left)


def _begin(mode: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.simulate.real", mode, str(folder)]
    return start(command, folder / f"{mode}.log")


def _read(path: Path) -> Measured:
    raw = json.loads(path.read_text())
    return Measured(tuple(raw["closed_at"]), tuple(raw["staleness"]), tuple(tuple(g) for g in raw["lengths"]))


class _Times:
    """MetricSinks with a watch."""

    def __init__(self, sinks: Any) -> None:
        self._sinks = sinks
        self.closed: list[float] = []
        self.staleness: list[float] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.closed.append(time.monotonic())
        self.staleness.append(metrics["training/staleness/mean"])
        self._sinks.log(step, metrics)


def _lengths(session: Session, config: RunConfig) -> list[list[int]]:
    """Response lengths of every trained group, by ordinal."""
    groups: dict[int, list[int]] = {}
    for step in range(1, session.total_steps + 1):
        for row in read_trajectories(session.run, step):
            groups.setdefault(row.ordinal, []).append(len(row.response_ids))
    if sorted(groups) != list(range(config.data.train_batch_size * session.total_steps)):
        raise RuntimeError(f"not every served group was trained: {sorted(groups)}")
    return [groups[ordinal] for ordinal in sorted(groups)]


def _run(mode: str, folder: Path) -> None:
    config = ready(resolve(str(CONFIG), overrides(mode, folder)).config)
    try:
        with open_trainer(config) as trainer:
            session = trainer.session
            session.policy = cast(PolicyEngine, PacedPolicy(session.policy))
            times = _Times(session.sinks)
            session.sinks = cast(Any, times)
            began = time.monotonic()
            trainer.fit()
            result = {
                "closed_at": [moment - began for moment in times.closed],
                "staleness": times.staleness,
                "lengths": _lengths(session, config),
            }
    finally:
        close_trainer(config)
    (folder / f"{mode}.json").write_text(json.dumps(result))


def same_lengths(measured: Mapping[str, Measured]) -> bool:
    """Whether every mode was asked for the same responses, as far as all of them went."""
    runs: Sequence[Measured] = list(measured.values())
    fewest = min(len(run.lengths) for run in runs)
    return all(run.lengths[:fewest] == runs[0].lengths[:fewest] for run in runs)


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]))

"""A run directory as a run of one-digit sums would leave it, written through the record's own functions."""

from __future__ import annotations

import math

import numpy as np

from verl_core.config import RunConfig, to_yaml
from verl_core.metrics import MetricSinks
from verl_core.metrics.sink import RunInfo
from verl_core.record.canonical import pretty
from verl_core.record.checkpoints import CheckpointStore
from verl_core.record.journal import Journal
from verl_core.record.rewards import write_rewards
from verl_core.record.rundir import CONFIG, RunDir
from verl_core.record.step_record import StepRecord, write_metrics, write_step_record
from verl_core.record.trajectories import write_trajectories
from verl_core.trajectory import Reward, Segment, Trajectory

HOSTILE = "<script>alert('x')</script>&\""


def char(token: int) -> str:
    """Token ids of the demo are characters."""
    return chr(token)


def ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.asarray([ord(c) for c in text], dtype=np.int32)


def build(run: RunDir, steps: int = 60, finished: bool = True, name: str = "quickstart") -> None:
    """Fill `run` with `steps` steps."""
    config, rng = RunConfig(), np.random.default_rng(7)
    config.trainer.experiment_name, config.trainer.total_training_steps = name, steps
    run.publish_bytes(CONFIG, to_yaml(config).encode())
    journal = Journal(run)
    sinks = MetricSinks(["jsonl"], RunInfo(run, name, steps))
    sinks.log(0, {"val-core/one_digit_sums/reward/mean@1": 0.61})
    store = CheckpointStore(run, keep=3, config=config)
    for step in range(1, steps + 1):
        uids = [f"{step:04x}{group}" for group in range(4)]
        journal.record("served", uids, step=step)
        journal.record("claimed", uids, step=step)
        if step == 17:
            journal.record("dropped", uids[3:], step=step, reason=f"timeout {HOSTILE}")
        metrics = _metrics(step, steps, rng)
        write_metrics(run, step, metrics)
        _samples(run, step, uids, rng)
        write_step_record(run, StepRecord(step, step - 1, step, code_version="git:0123abc", config_hash="9f" * 32))
        sinks.log(step, metrics)
        journal.record("trained", uids[: 3 if step == 17 else 4], step=step)
        if step % 20 == 0:
            store.save(step, lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 700_000) and None, {})
    if finished:
        journal.ended(steps)
        versions = {
            "ray": "2.60.0",
            "torch": "2.13.0",
            "vllm": "0.32.0",
            "flytekit": "1.16.31",
            "transferqueue": "0.1.11",
        }
        run.publish_bytes(
            "summary.json", pretty({"wall_s": 61.4, "versions": versions, "final_weights_sha256": "c0" * 32})
        )


def _metrics(step: int, steps: int, rng: np.random.Generator) -> dict[str, float]:
    done = step / steps
    reward = 0.45 + 0.45 * (1 - math.exp(-3.2 * done)) + rng.normal(0, 0.035)
    length = 5.2 - 1.6 * done + rng.normal(0, 0.15)
    gen, update, old = (base * (1 + abs(rng.normal(0, 0.12))) for base in (0.52, 0.31, 0.09))
    metrics = {
        "critic/score/mean": reward,
        "actor/kl_loss": 0.02 * done + abs(rng.normal(0, 0.001)),
        "actor/ppo_kl": abs(rng.normal(3e-4, 1e-4)),
        "actor/entropy": 1.1 - 0.75 * done + rng.normal(0, 0.03),
        "actor/pg_clipfrac": abs(rng.normal(0.012, 0.004)),
        "actor/pg_clipfrac_lower": 0.0,
        "actor/grad_norm": abs(rng.normal(0.9, 0.2)),
        "response_length/mean": length,
        "response_length/max": 12.0,
        "response_length/min": 2.0,
        "training/rollout_probs_diff_max": abs(rng.normal(2e-4, 5e-5)),
        "timing_s/gen": gen,
        "timing_s/reward": 0.02,
        "timing_s/old_log_prob": old,
        "timing_s/adv": 0.004,
        "timing_s/update_actor": update,
        "timing_s/update_weights": 0.03,
        "timing_s/save_checkpoint": 0.25 if step % 20 == 0 else 0.0,
        "perf/total_num_tokens": 256 * (9 + length),
    }
    seconds = sum(value for key, value in metrics.items() if key.startswith("timing_s/")) + 0.05
    metrics |= {"timing_s/step": seconds, "perf/time_per_step": seconds}
    metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds
    if step % 20 == 0:
        metrics["val-core/one_digit_sums/reward/mean@1"] = 0.61 + 0.35 * done
    return metrics


def _samples(run: RunDir, step: int, uids: list[str], rng: np.random.Generator) -> None:
    rows, rewards = [], []
    for ordinal, uid in enumerate(uids):
        a, b = int(rng.integers(10)), int(rng.integers(10))
        right = ordinal % 2 == 0
        text = f"{a} plus {b}\nis {a + b if right else a + b + 1}." if ordinal else f"{a + b}{HOSTILE}"
        log_probs = -np.abs(rng.exponential(0.9, len(text))).astype(np.float32)
        log_probs[: len(text) // 2] *= 0.1
        mask = np.ones(len(text), np.bool_)
        mask[2:4] = ordinal != 3
        row = Trajectory(
            uid, 0, 0, step * 4 + ordinal, ids(f"<|user|>What is {a}+{b}?<|assistant|>"), ids(text), mask, log_probs,
            (Segment(step - 1, len(text)),), "stop", "one_digit_sums",
        )  # fmt: skip
        rows.append(row)
        rewards.append(Reward(row.key, 1.0 if right else 0.0))
    if step == 1:
        rewards[3] = Reward(rows[3].key, 0.0, {}, "raised", f"ValueError: {HOSTILE}")
    write_trajectories(run, step, rows)
    write_rewards(run, step, rewards)

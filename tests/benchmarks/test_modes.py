"""The pieces of `make bench-modes`: bounds against schedules found by hand and by search, paces against the clock."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.modes.bounds import (
    Generators,
    StepWork,
    Work,
    colocate_bound_s,
    separate_bound_s,
    sync_bound_s,
)
from benchmarks.modes.conditions import CONDITIONS, RECIPE, Conditions, Run, overrides
from benchmarks.modes.measure import Measured, Span, sampled_between
from benchmarks.modes.paced import Pace, PacedPolicy
from benchmarks.modes.page import page
from benchmarks.modes.reward import compute_score
from benchmarks.modes.summary import mechanisms, of_mode, times, within_interval
from verl_core.batch import TrainBatch
from verl_core.config import resolve
from verl_core.engine.interface import PolicyEngine
from verl_core.trajectory import Segment, Trajectory

PACE = Pace(tokens_per_s=10.0, devices=2, forward_share=0.5)  # 20 tokens/s, 40 for log-probs
TWO = Generators(devices=2, slots=2, token_s=0.5)


def trajectory(uid: str, session: int, *segments: tuple[int, int]) -> Trajectory:
    """A response of the given (version, length) parts; a prompt of two tokens."""
    length = sum(part for _, part in segments)
    return Trajectory(
        uid=uid,
        session=session,
        index=0,
        ordinal=0,
        prompt_ids=np.arange(2, dtype=np.int32),
        response_ids=np.zeros(length, dtype=np.int32),
        response_mask=np.ones(length, dtype=np.bool_),
        rollout_log_probs=np.zeros(length, dtype=np.float32),
        segments=tuple(Segment(version, part) for version, part in segments),
        stop_reason="stop",
        data_source="bench",
    )


# ---- bounds


def test_a_step_by_hand() -> None:
    """Four slots, 0.5 s a token. Lengths 8, 1, 1, 1: the longest needs 4 s. Lengths 4 x 8: 16 tokens a device, 8 a
    slot, 4 s. Training reads 11 + 4 tokens: 0.75 s, and half of it for log-probs."""
    assert TWO.makespan_s([8, 1, 1, 1]) == 4.0
    assert TWO.makespan_s([4] * 8) == 4.0
    assert TWO.makespan_s([]) == 0.0
    step = StepWork((8, 1, 1, 1), prompt_tokens=4)
    assert PACE.step_s(step.tokens) == pytest.approx(0.75 + 0.375)
    assert sync_bound_s(Work(11, (step, step)), TWO, PACE) == pytest.approx(2 * (4.0 + 1.125))
    assert colocate_bound_s(Work(11, (step,)), TWO, PACE) == pytest.approx(11 * 0.5 / 4 + 1.125)
    assert separate_bound_s(Work(11, (step,)), TWO, PACE) == pytest.approx(11 * 0.5 / 4)
    assert separate_bound_s(Work(5, (step,)), TWO, PACE) == pytest.approx(1.125)  # now training decides


def test_no_schedule_of_a_batch_beats_the_bound() -> None:
    """Every way to deal five responses to four slots, by brute force: none ends sooner than makespan_s."""
    generator = np.random.default_rng(0)
    for _ in range(30):
        lengths = generator.integers(1, 12, 5).tolist()
        deals = itertools.product(range(4), repeat=5)
        best = min(
            max(sum(n for n, slot in zip(lengths, deal, strict=True) if slot == s) for s in range(4)) for deal in deals
        )
        assert best * 0.5 >= TWO.makespan_s(lengths)
    assert TWO.makespan_s([4, 4, 4, 4]) == 2.0  # and there are batches that reach it: a response in each slot


@pytest.mark.parametrize("seed", range(5))
def test_no_simulated_trainer_beats_its_bound(seed: int) -> None:
    """Token by token, with perfect knowledge and no overhead: list scheduling for sync, never an empty slot while there
    is work for the others. What each takes is at least its bound, and within a few tokens of it where the bound is
    tight."""
    generator = np.random.default_rng(seed)
    batches = [tuple(generator.integers(1, 20, 8).tolist()) for _ in range(4)]
    steps = tuple(StepWork(lengths, 8) for lengths in batches)
    work = Work(sum(map(sum, batches)), steps)
    trained = sum(PACE.step_s(step.tokens) for step in steps)
    taken = sum(_ticks(sorted(lengths, reverse=True), 4) for lengths in batches) * 0.5 + trained
    assert taken >= sync_bound_s(work, TWO, PACE)
    flat = sorted((n for lengths in batches for n in lengths), reverse=True)
    together = _ticks(flat, 4) * 0.5
    assert together + trained >= colocate_bound_s(work, TWO, PACE)
    assert together + trained <= colocate_bound_s(work, TWO, PACE) + 0.5
    assert max(together, trained) >= separate_bound_s(work, TWO, PACE)


def _ticks(lengths: list[int], slots: int) -> int:
    """Token times until all are sampled: each free slot takes the next response."""
    queue, running, ticks = list(lengths), [], 0
    while queue or running:
        while queue and len(running) < slots:
            running.append(queue.pop(0))
        ticks += 1
        running = [left - 1 for left in running if left > 1]
    return ticks


def test_tokens_of_a_window_are_told_by_their_versions() -> None:
    """Three responses, cut at publications: versions 1 and 2 sampled 3 + 2 + 4 tokens, wherever they were trained."""
    rows = [
        [trajectory("a", 0, (0, 5), (1, 3))],
        [trajectory("b", 0, (1, 2), (2, 4))],
        [trajectory("c", 0, (3, 7))],
    ]
    assert sampled_between(rows, 1, 3) == 9
    assert sampled_between(rows, 0, 4) == 21
    assert sum(sampled_between(rows, at, at + 1) for at in range(4)) == 21


# ---- pace


class Instant:
    """Answers at once, after `real_s` of work."""

    def __init__(self, real_s: float) -> None:
        self.real_s = real_s

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        time.sleep(self.real_s)
        return {"step": float(step)}

    def old_log_probs(self, batch: TrainBatch) -> str:
        return "log-probs"

    def steps_done(self) -> int:
        return 7


@pytest.mark.parametrize(("real_s", "late_s"), [(0.0, 0.0), (0.1, 0.0), (0.4, 0.1)])
def test_a_call_takes_what_the_devices_take(real_s: float, late_s: float) -> None:
    """Six tokens at 20/s are 0.3 s, log-probs 0.15 s; the real work lies inside, and what exceeds it is told."""
    batch = TrainBatch.from_trajectories([trajectory("a", 0, (0, 1)), trajectory("a", 1, (0, 1))], [0.0, 1.0])
    policy = PacedPolicy(cast(PolicyEngine, Instant(real_s)), PACE)
    began = time.monotonic()
    assert policy.update(batch, 3) == {"step": 3.0}
    assert time.monotonic() - began == pytest.approx(max(0.3, real_s), abs=0.05)
    assert policy.late_s == pytest.approx(late_s, abs=0.05)
    assert policy.old_log_probs(batch) == "log-probs"
    assert policy.paced_s == pytest.approx(0.45)
    assert policy.steps_done() == 7


# ---- conditions and reward


def test_lengths_are_as_the_issue_asks() -> None:
    assert CONDITIONS.p99 >= 8 * CONDITIONS.median
    assert CONDITIONS.cap == 16 * CONDITIONS.median
    assert len(CONDITIONS.seeds) >= 5


@pytest.mark.parametrize(
    "run", [Run("sync", 1), Run("sync", 2, 3), Run("colocate_async", 1), Run("separate_async", 1, 3)]
)
def test_every_run_is_a_configuration_with_as_many_devices(run: Run, tmp_path: Path) -> None:
    config = resolve(RECIPE, overrides(run, CONDITIONS, tmp_path)).config
    assert config.actor_rollout_ref.rollout.num_servers == run.servers(CONDITIONS)
    shared = run.rollout == 0
    assert run.trainers(CONDITIONS) == (4 if shared else 1)
    assert run.servers(CONDITIONS) == (4 if shared else 3)


def test_reward_is_the_share_of_odd_digits() -> None:
    assert compute_score("", "13a2", "", {})["score"] == 0.5
    assert compute_score("", "", "", {})["score"] == 0.0


# ---- summary


def measured(mode: str, rewards: list[float], **span: float) -> Measured:
    """A run of two devices with made-up numbers."""
    values: dict[str, Any] = {
        "wall_s": 40.0,
        "steps": 4,
        "samples_per_s": 2.0,
        "bound_s": 38.0,
        "engine_busy": 0.9,
        "slots_busy": 0.5,
        "trainer_busy": 0.2,
        "gen_s": 30.0,
        "paced_s": 8.0,
    }
    whole = Span(**{**values, **span})
    rollout = 3 if mode == "separate_async" else 0
    ends = [10.0 * step for step in range(1, len(rewards) + 1)]
    return Measured(Run(mode, 1, rollout), whole, whole, 0.0, {}, {0: 3, 2: 1}, rewards, ends, 1.0, 0.0, 0.1)  # type: ignore[arg-type]


def test_seconds_of_a_step_and_their_mechanisms_add_up() -> None:
    """Sync: 10 s a step, of which slots are full for 5, generation takes 7.5, training 2. Colocate: 7 s; separate 6 s
    with full slots for 5.7."""
    sync = times([measured("sync", [0.0])])
    assert sync == pytest.approx({"step": 10.0, "sampling": 5.0, "empty_slots": 2.5, "training": 2.0, "other": 0.5})
    colocate = times([measured("colocate_async", [0.0], wall_s=28.0, slots_busy=5 / 7, gen_s=20.4)])
    gain = mechanisms(sync, colocate)
    assert gain["saved"] == pytest.approx(3.0)
    assert gain["no_tail_wait"] == pytest.approx(2.5 - 0.1)
    assert (gain["overlap"], gain["fewer_rollout_devices"], gain["lending"]) == (0.0, 0.0, 0.0)
    assert gain["rest"] == pytest.approx(0.6)
    separate = mechanisms(sync, times([measured("separate_async", [0.0], wall_s=24.0, slots_busy=0.95, gen_s=4.0)]))
    assert separate["no_tail_wait"] == pytest.approx(2.5 - 0.3)
    assert separate["overlap"] == pytest.approx(2.0)
    assert separate["fewer_rollout_devices"] == pytest.approx(5.0 - 5.7)
    parts = ("no_tail_wait", "overlap", "fewer_rollout_devices", "lending", "rest")
    assert sum(separate[part] for part in parts) == pytest.approx(separate["saved"])
    assert separate["factor"] == pytest.approx(10 / 6)


def test_the_seeds_interval_is_from_the_smallest_to_the_largest() -> None:
    """Of the last five steps of each seed; the other mode counts with its mean."""
    sync = [measured("sync", [0.0, *[end] * 5]) for end in (0.5, 0.6, 0.7)]
    assert within_interval(sync, [measured("colocate_async", [0.9, *[end] * 5]) for end in (0.3, 0.8)])
    assert not within_interval(sync, [measured("colocate_async", [0.6, *[end] * 5]) for end in (0.3, 0.6)])


def test_a_mode_is_the_mean_of_its_seeds_and_the_page_shows_it() -> None:
    runs = [measured("sync", [0.1, 0.2]), measured("sync", [0.3, 0.4], samples_per_s=4.0)]
    mode = of_mode(runs)
    assert mode["samples_per_s"] == {"mean": 3.0, "min": 2.0, "max": 4.0}
    assert mode["of_bound"]["mean"] == pytest.approx(0.95)
    assert mode["staleness_histogram"] == {0: 0.75, 2: 0.25}
    assert mode["staleness_mean"]["mean"] == 0.5
    assert [point["reward"] for point in mode["reward_curve"]] == pytest.approx([0.2, fmean([0.2, 0.4])])
    seconds = times(runs)
    text = page(
        {
            "conditions": {"devices": CONDITIONS.devices},
            "text": "made up <here>",
            "goals": [{"name": "g", "value": 0.5, "op": ">=", "goal": 1, "ok": False}],
            "modes": {"sync": mode},
            "times": {"sync": seconds},
            "mechanisms": {"colocate_async": mechanisms(seconds, seconds)},
            "vllm": {"sync": {"step_s": 1.5}},
            "vllm_text": "two cores",
        }
    )
    assert "made up &lt;here&gt;" in text
    assert text.count("<polyline") == 3
    assert "10.00 s a step" in text


def test_conditions_can_be_varied() -> None:
    assert replace(Conditions(), median=4).cap == 64

"""From the runs to what is reported. Invariant: a mode's number is its mean over seeds, with both ends beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.modes.measure import Measured

LAST_STEPS = 5  # whose mean is the reward at the end of a run
Number = Callable[[Measured], float]

NUMBERS: dict[str, Number] = {
    "samples_per_s": lambda m: m.window.samples_per_s,
    "step_s": lambda m: m.window.wall_s / m.window.steps,
    "of_bound": lambda m: m.window.of_bound,
    "of_bound_whole_run": lambda m: m.whole.of_bound,
    "samples_per_s_whole_run": lambda m: m.whole.samples_per_s,
    "rollout_busy": lambda m: m.window.engine_busy,
    "rollout_slots_busy": lambda m: m.window.slots_busy,
    "trainer_busy": lambda m: m.window.trainer_busy,
    "discarded_share": lambda m: m.discarded_share,
    "staleness_mean": lambda m: sum(age * count for age, count in m.staleness.items()) / sum(m.staleness.values()),
    "staleness_max": lambda m: float(max(m.staleness)),
    "reward_end": lambda m: reward_end(m),
    "machine_load": lambda m: m.load,
    "late_s": lambda m: m.late_s,
    "real_share_of_training": lambda m: m.real_share,
}


def reward_end(run: Measured) -> float:
    """Mean score of the last steps; all modes have trained on as many samples then."""
    return fmean(run.rewards[-LAST_STEPS:])


def of_mode(runs: Sequence[Measured]) -> dict[str, Any]:
    """All numbers of a mode: {mean, min, max} each, the histogram of staleness, and both reward curves."""
    spread = {name: _spread([number(run) for run in runs]) for name, number in NUMBERS.items()}
    ages: Counter[int] = Counter()
    for run in runs:
        ages.update(run.staleness)
    total = sum(ages.values())
    samples = runs[0].window.samples_per_s * runs[0].window.wall_s / runs[0].window.steps
    return {
        **spread,
        "seeds": len(runs),
        "staleness_histogram": {age: ages[age] / total for age in sorted(ages)},
        "dropped_groups": sum(sum(run.dropped.values()) for run in runs),
        "reward_curve": [
            {
                "samples": round(samples * (step + 1)),
                "wall_s": fmean(run.ends[step] for run in runs),
                "reward": fmean(run.rewards[step] for run in runs),
            }
            for step in range(len(runs[0].rewards))
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(values), "min": min(values), "max": max(values)}


def within_interval(sync: Sequence[Measured], other: Sequence[Measured]) -> bool:
    """Whether the mean over seeds of a mode's reward at the end lies between the smallest and the largest of sync's
    seeds, after equally many samples."""
    ends = [reward_end(run) for run in sync]
    return min(ends) <= fmean(reward_end(run) for run in other) <= max(ends)


def times(runs: Sequence[Measured]) -> dict[str, float]:
    """Seconds of a step, mean over seeds: `sampling` = with every slot of the rollout's devices at work on what was
    sampled, `empty_slots` = what generation took beyond it, `training`, `other`. In `separate_async` generation is all
    the time, so training and the rest of the loop lie beside it and not behind it."""
    spans = [run.window for run in runs]
    wall = fmean(span.wall_s / span.steps for span in spans)
    sampling = fmean(span.slots_busy * span.wall_s / span.steps for span in spans)
    training = fmean(span.paced_s / span.steps for span in spans)
    if runs[0].run.mode == "separate_async":
        waits = fmean(span.gen_s / span.steps for span in spans)
        beside = {"training_beside": training, "trainer_waits_beside": waits}
        return {"step": wall, "sampling": sampling, "empty_slots": wall - sampling, **beside}
    generating = fmean(span.gen_s / span.steps for span in spans)
    other = wall - generating - training
    parts = {"sampling": sampling, "empty_slots": generating - sampling, "training": training, "other": other}
    return {"step": wall, **parts}


def mechanisms(sync: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Where the seconds of a step go that a mode saves against sync on the same devices. The parts sum to `saved`.

    no_tail_wait: slots that were empty while the last responses ended, and are not any more.
    overlap: training that generation does not wait for any more; 0 where devices take turns.
    fewer_rollout_devices: what sampling takes longer because some devices only train (negative).
    lending: 0, it is off.
    rest: everything else: reward, publication, files; and that not all spans sampled equally much.
    """
    saved = sync["step"] - other["step"]
    tail = sync["empty_slots"] - other["empty_slots"]
    overlap = 0.0 if "training" in other else sync["training"]
    split = 0.0 if "training" in other else sync["sampling"] - other["sampling"]
    parts = {"no_tail_wait": tail, "overlap": overlap, "fewer_rollout_devices": split, "lending": 0.0}
    return {"saved": saved, **parts, "rest": saved - sum(parts.values()), "factor": sync["step"] / other["step"]}

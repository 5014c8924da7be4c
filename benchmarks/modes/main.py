"""Runs everything and writes out/bench_modes.json and .html: `python -m benchmarks.modes.main`."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from benchmarks.goals import OUT, Goal, report
from benchmarks.modes import real_vllm
from benchmarks.modes.conditions import CONDITIONS, Mode, Run
from benchmarks.modes.measure import Measured, measured
from benchmarks.modes.one import config_of
from benchmarks.modes.page import page
from benchmarks.modes.side_by_side import Progress, execute, room, whole
from benchmarks.modes.summary import mechanisms, of_mode, times, within_interval

ROOT = OUT / "modes"
SPLIT_STEPS, SPLIT_SEEDS = 8, (1, 2, 3)
# Seconds that a round takes, for the time left only.
_START_S, _STEP_S = 60.0, {"sync": 17.0, "colocate_async": 9.6, "separate_async": 10.0}
_VLLM_S = 90.0


def main() -> None:
    """Measure, judge, write."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--side-by-side", type=int, default=room(), help="runs at a time")
    arguments.add_argument("--resume", action="store_true", help="keep the runs of an earlier call that are whole")
    asked = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the runs, too
    os.environ.setdefault("RAY_worker_niceness", "0")  # else whatever else runs on this machine has right of way
    if not asked.resume:
        shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True, exist_ok=True)
    config_of(Run("sync", 1), CONDITIONS, ROOT)  # makes prompts and start policy once, before the runs look for them
    rounds = _rounds(asked.side_by_side)
    progress = Progress([_expected_s(runs) for runs in rounds] + [_VLLM_S] * len(real_vllm.CONFIGS))
    for number, runs in enumerate(rounds):
        if open_runs := [run for run in runs if not whole(run, ROOT)]:
            execute(open_runs, ROOT, progress, number)
    vllm = {}
    for number, mode in enumerate(real_vllm.CONFIGS, start=len(rounds)):
        progress.say(number, 0.0, f"real vLLM, {mode}")
        vllm[mode] = real_vllm.execute(mode, ROOT)
    found = [measured(run, CONDITIONS, ROOT) for runs in rounds for run in runs]
    _write(found, vllm)


def _rounds(side_by_side: int) -> list[list[Run]]:
    """One mode after the other, so that what is compared ran beside the same company; as many as there is room for."""
    modes: list[tuple[Mode, int]] = [("sync", 0), ("colocate_async", 0), ("separate_async", CONDITIONS.rollout_devices)]
    series = [[Run(mode, seed, rollout) for seed in CONDITIONS.seeds] for mode, rollout in modes]
    series.append([Run("sync", seed, CONDITIONS.rollout_devices, SPLIT_STEPS) for seed in SPLIT_SEEDS])
    return [part for runs in series for part in _even_parts(runs, side_by_side)]


def _even_parts(runs: list[Run], most: int) -> list[list[Run]]:
    """As few parts as have at most `most` runs, of sizes that differ by one at most."""
    count = math.ceil(len(runs) / most)
    return [runs[part * len(runs) // count : (part + 1) * len(runs) // count] for part in range(count)]


def _expected_s(runs: Sequence[Run]) -> float:
    return _START_S + max(run.total_steps(CONDITIONS) * _STEP_S[run.mode] for run in runs)


def _write(found: Sequence[Measured], vllm: Mapping[str, Mapping[str, float]]) -> None:
    by_mode = _by_mode(found)
    modes = {mode: of_mode(runs) for mode, runs in by_mode.items()}
    seconds = {mode: times(runs) for mode, runs in by_mode.items()}
    sync, split = by_mode["sync"], by_mode["sync_split"]
    asynchronous = ("colocate_async", "separate_async")
    speedup = {mode: _speedups(by_mode[mode], sync, split) for mode in asynchronous}
    details: dict[str, Any] = {
        "text": _text(),
        "conditions": asdict(CONDITIONS),
        "modes": modes,
        "times": seconds,
        "mechanisms": {mode: mechanisms(seconds["sync"], seconds[mode]) for mode in asynchronous},
        "speedup": speedup,
        "vllm": vllm,
        "vllm_text": " ".join((real_vllm.__doc__ or "").split("\n\n")[-1].split()),
        "machine": {"cores": os.cpu_count()},
        "runs": [_row(run) for run in found],
    }
    goals = _goals(modes, speedup, by_mode)
    rows = [{**asdict(goal), "ok": goal.ok} for goal in goals]
    (OUT / "bench_modes.html").write_text(page({"goals": rows, **details}))
    report("bench_modes.json", goals, details)


def _by_mode(found: Sequence[Measured]) -> dict[str, list[Measured]]:
    series: dict[str, list[Measured]] = {}
    for one in found:
        name = "sync_split" if one.run.mode == "sync" and one.run.rollout else one.run.mode
        series.setdefault(name, []).append(one)
    return series


def _goals(
    modes: Mapping[str, Any], speedup: Mapping[str, Mapping[str, float]], by_mode: Mapping[str, list[Measured]]
) -> list[Goal]:
    sync = by_mode["sync"]
    learned = all(within_interval(sync, by_mode[mode]) for mode in ("colocate_async", "separate_async"))
    return [
        Goal("colocate_of_bound", modes["colocate_async"]["of_bound"]["mean"], ">=", 0.95),
        Goal("separate_of_bound", modes["separate_async"]["of_bound"]["mean"], ">=", 0.95),
        Goal("colocate_vs_sync", speedup["colocate_async"]["vs_sync_best"], ">=", 1.5),
        Goal("separate_vs_sync", speedup["separate_async"]["vs_sync_best"], ">=", 1.5),
        Goal("reward_within_interval", learned, "==", True),
    ]


def _speedups(mode: Sequence[Measured], sync: Sequence[Measured], split: Sequence[Measured]) -> dict[str, float]:
    """Samples/s as a multiple of sync's: with all devices taking turns, and split as `separate_async` has them. The
    better of the two is sync's best split: it is the one that counts."""
    speed = fmean(run.window.samples_per_s for run in mode)
    turns, apart = (fmean(run.window.samples_per_s for run in runs) for runs in (sync, split))
    return {
        "vs_sync": speed / turns,
        "vs_sync_split": speed / apart,
        "vs_sync_best": speed / max(turns, apart),
        "vs_sync_whole_run": fmean(run.whole.samples_per_s for run in mode)
        / fmean(r.whole.samples_per_s for r in sync),
    }


def _row(one: Measured) -> dict[str, Any]:
    spans = {name: {**asdict(span), "of_bound": span.of_bound} for name, span in one.spans.items()}
    return {
        "run": one.run.name,
        **spans,
        **{k: v for k, v in asdict(one).items() if k not in ("run", "window", "whole")},
    }


def _text() -> str:
    c = CONDITIONS
    return (
        f"{c.devices} devices in all; {c.groups} x {c.sessions} responses a step, log-normal lengths with median "
        f"{c.median}, 99th percentile {c.p99} and cap {c.cap} tokens; {c.slots} requests at a time on a device, "
        f"{c.token_s:g} s a token; training {c.train_tokens_per_s:g} tokens/s a device; {len(c.seeds)} seeds; "
        f"separate_async: {c.rollout_devices} devices roll out, {c.devices - c.rollout_devices} train. Numbers are of "
        f"steps {c.first + 1} to {c.last} of {c.steps}."
    )


if __name__ == "__main__":
    main()

"""Closed form, simulator and real loop on the same parameters. Invariant: one Setup per mode is given to all three;
compared are steps `FIRST` .. last - `DRAIN` for speed (no first fill, no last drain), the whole run for staleness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.simulate.closed_form import predict, staleness_of_run, sync_of_draws
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import LogNormal
from benchmarks.simulate.real import Measured, overhead, same_lengths
from benchmarks.simulate.run import Setup, simulate

FIRST, DRAIN = 4, 2
MODES: Final = ("sync", "colocate_async", "separate_async")

# At the tail of the goals (p99 = 8 x median, cap = 16 x median), larger than the real loop here can be.
LARGE: Final = Setup(
    mode="sync",
    lengths=LogNormal(600, 4_800, 9_600),
    servers=8,
    server=ServerSpeed(t0=0.01, t1=5e-5, read_s=1e-5),
    trainer=TrainerSpeed(token_s=1e-4, devices=16, publish_s=2.0, sleep_s=1.0, wake_s=1.0),
    batch_size=128,
    n=4,
    steps=30,
    prompt_tokens=100,
    grain=256,
)
SCENARIOS: Final[Mapping[str, Setup]] = {
    "sync": replace(LARGE, steps=40),
    "colocate_async": replace(LARGE, mode="colocate_async"),
    "colocate_async, two ahead": replace(LARGE, mode="colocate_async", warmup=2.0),
    "colocate_async, half ahead": replace(LARGE, mode="colocate_async", warmup=0.5),
    "colocate_async, drop above 3": replace(LARGE, mode="colocate_async", warmup=2.0, threshold=3, steps=40),
    "separate_async": replace(LARGE, mode="separate_async", servers=4, trainer=replace(LARGE.trainer, devices=8)),
    "separate_async, admission": replace(
        LARGE, mode="separate_async", servers=4, warmup=4.0, strategy="admission", threshold=2
    ),
    "separate_async, slow trainer": replace(
        LARGE, mode="separate_async", warmup=3.0, threshold=None, trainer=replace(LARGE.trainer, devices=3)
    ),
}


def without_the_real_loop() -> list[dict[str, Any]]:
    """Closed form beside simulator, in larger and more various settings."""
    rows = []
    for name, setup in SCENARIOS.items():
        seen, run = predict(setup), simulate(setup)
        window = run.window(FIRST, setup.steps - DRAIN)
        staleness = float(np.mean(run.staleness))
        rows.append(
            {
                "scenario": name,
                "samples_per_s": {"closed_form": seen.samples_per_s, "simulator": window.samples_per_s},
                "staleness": {"closed_form": staleness_of_run(setup, seen.staleness), "simulator": staleness},
            }
        )
    return [{**row, **_worst(row)} for row in rows]


def with_the_real_loop(measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """All three, per mode. What a step costs beside sampling and training is measured on the synchronous run and given
    to the two others as it is."""
    extra = overhead(measured["sync"])
    rows = []
    for mode in MODES:
        real, setup = measured[mode], measured[mode].setup(mode, extra)
        first, last = FIRST, setup.steps - DRAIN
        seen, run = predict(setup), simulate(setup)
        samples = setup.batch_size * setup.n
        took = (real.closed_at[last - 1] - real.closed_at[first - 2]) / (last - first + 1)
        closed = sync_of_draws(setup, real.lengths, first, last) if mode == "sync" else seen.step_s
        rows.append(
            {
                "scenario": mode,
                "overhead_s": extra,
                "samples_per_s": {
                    "closed_form": samples / closed,
                    "simulator": run.window(first, last).samples_per_s,
                    "real": samples / took,
                },
                "staleness": {
                    "closed_form": staleness_of_run(setup, seen.staleness),
                    "simulator": float(np.mean(run.staleness)),
                    "real": float(np.mean(real.staleness)),
                },
            }
        )
    if not same_lengths(measured):
        raise RuntimeError("the modes were asked for different responses, so they cannot be compared")
    return [{**row, **_worst(row)} for row in rows]


def _worst(row: Mapping[str, Any]) -> dict[str, float]:
    """Largest distance between two of the accounts, relative to the smaller; 0 where all are 0."""
    gaps = {}
    for name in ("samples_per_s", "staleness"):
        values = list(row[name].values())
        gaps[f"{name}_gap"] = max(values) / min(values) - 1.0 if min(values) > 0 else float(max(values) > 0)
    return gaps

"""The closed form against hand computation, against exact sums, and against the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulate.closed_form import predict, staleness_of_run
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import Empirical, LogNormal, longest_of, mean_of, mean_up_to
from benchmarks.simulate.run import Setup, simulate

SETUP = Setup(
    mode="colocate_async",
    lengths=LogNormal(600, 4800, 9600),
    servers=4,
    server=ServerSpeed(t0=0.01, t1=5e-5),
    trainer=TrainerSpeed(token_s=1e-4, devices=8, publish_s=2.0, sleep_s=1.0, wake_s=1.0),
    batch_size=64,
    n=2,
    steps=24,
    grain=256,
)


def test_statistics_of_given_lengths() -> None:
    law = Empirical(((1, 2), (3, 10)))
    # Longest of two independent draws from {1, 2, 3, 10}: (1 x 1 + 3 x 2 + 5 x 3 + 7 x 10) / 16 = 92 / 16.
    assert mean_of(law) == pytest.approx(4.0, rel=1e-3)
    assert longest_of(law, 2) == pytest.approx(92 / 16, rel=1e-3)
    assert mean_up_to(law, 3.0) == pytest.approx(2.0, rel=2e-3)


def test_statistics_of_the_log_normal_are_those_of_its_draws() -> None:
    law = LogNormal(600, 4800, 9600)
    drawn = np.asarray([law.draw(1, ordinal, 2) for ordinal in range(40_000)])
    assert mean_of(law) == pytest.approx(drawn.mean(), rel=0.01)
    assert longest_of(law, 2) == pytest.approx(drawn.max(axis=1).mean(), rel=0.01)
    assert float(np.median(drawn)) == pytest.approx(600, rel=0.02)
    assert LogNormal.with_mean(2000, 0.8, 9600).sigma == pytest.approx(0.8)
    assert mean_of(LogNormal.with_mean(2000, 0.8, 9600)) == pytest.approx(2000, rel=1e-6)


def test_equal_lengths_by_hand() -> None:
    # Every response has 100 tokens. colocate_async, one batch ahead: two batches are under way at any time, so two
    # steps go by in 100 tokens: D = 50.
    setup = replace(SETUP, lengths=Empirical(((100, 100),)), trainer=TrainerSpeed(token_s=0.0), batch_size=8, servers=1)
    seen = predict(setup)
    assert seen.tokens == pytest.approx(50, rel=1e-6)
    assert seen.step_s == pytest.approx(0.01 * 50 + 5e-5 * 16 * 100)
    assert seen.staleness == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "sync", "steps": 60, "batch_size": 128},
        {},
        {"warmup": 2.0},
        {"warmup": 0.5},
        {"threshold": 3, "warmup": 2.0, "steps": 40, "batch_size": 192},
        {"strategy": "admission", "threshold": 1, "warmup": 3.0},
        {"server": ServerSpeed(t0=0.01, t1=5e-5, read_s=1e-4)},
        {"server": ServerSpeed(t0=0.01, t1=5e-5, slots=12), "n": 1, "batch_size": 128, "warmup": 3.0},
        {"mode": "separate_async"},
        {"mode": "separate_async", "warmup": 3.0, "threshold": None},
        {"mode": "separate_async", "trainer": TrainerSpeed(1e-4, 1, publish_s=2.0, switch_s=1.0)},
    ],
)
def test_closed_form_and_simulator_agree(changes: dict[str, object]) -> None:
    setup = replace(SETUP, **changes)  # type: ignore[arg-type]
    seen, run = predict(setup), simulate(setup)
    window = run.window(5, setup.steps - 4)
    assert seen.samples_per_s == pytest.approx(window.samples_per_s, rel=0.05)
    staleness = float(np.mean(run.staleness))
    assert staleness_of_run(setup, seen.staleness) == pytest.approx(staleness, rel=0.05, abs=1e-9)


def test_without_drops_the_mean_staleness_of_a_run_is_exact() -> None:
    setup = replace(SETUP, threshold=None, strategy="off", warmup=2.0)
    assert float(np.mean(simulate(setup).staleness)) == pytest.approx(staleness_of_run(setup, 2.0), abs=1e-9)

"""From 16 to 1,024 devices: which mode, and which split. Invariant: the same model, batch and lengths everywhere; only
the number of devices, their split and the tail change.

Every split is computed by the closed form; the best one of each mode is then simulated, with one on either side when it
has a split, so that what the tables say is what the product's loop does, and the closed form is checked on the way.

The model is the one that `published` fits at its centre. Training scales with the devices, except a constant per step
(mini-batches, reduction, loop): it is what stops strong scaling, beside the longest response. A batch has 256 prompts
of 8 responses of 8,000 tokens on average, cut at 32,768, for three tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchmarks.simulate.closed_form import predict
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import LogNormal
from benchmarks.simulate.published import CENTRE, PER_SERVER, Fitted
from benchmarks.simulate.run import Setup, simulate

DEVICES: Final = (16, 64, 256, 1024)
TAILS: Final = {"short": 0.3, "middle": 0.8, "long": 1.2}  # sigma: p99 / median = 2.0, 6.4, 16.3
MODES: Final = ("sync", "colocate_async", "separate_async")
WARMUPS: Final = (1.0, 3.0)
MEAN, CAP, BATCH, SAMPLES = 8_000.0, 32_768, 256, 8
STEP_S, SWITCH_S = 10.0, 1.0
SIM_STEPS = 12


@dataclass(frozen=True)
class Point:
    """One place of the sweep: `rollout` of `devices` are servers' own, the others train; 0 = shared."""

    mode: str
    tail: str
    devices: int
    rollout: int
    warmup: float

    def setup(self, fitted: Fitted) -> Setup:
        """For closed form and simulator."""
        apart = self.mode == "separate_async"
        serving, training = (self.rollout, self.devices - self.rollout) if apart else (self.devices, self.devices)
        turn = 0.0 if apart else CENTRE.turn_s / 4
        return Setup(
            mode=self.mode,
            lengths=LogNormal.with_mean(MEAN, TAILS[self.tail], CAP),
            servers=serving // PER_SERVER,
            server=ServerSpeed(fitted.t0, CENTRE.growth * fitted.t0 / 64, read_s=1.0 / CENTRE.read_tokens_per_s),
            trainer=TrainerSpeed(
                fitted.token_s, training, STEP_S, CENTRE.turn_s / 2, SWITCH_S if apart else 0.0, turn, turn
            ),
            batch_size=BATCH,
            n=SAMPLES,
            steps=SIM_STEPS,
            warmup=self.warmup,
            prompt_tokens=155,
            workers=4,
            grain=1024,
            bell_s=1.0,
        )


def splits(devices: int) -> list[int]:
    """Rollout devices: whole servers, about 16 choices, at least one server on either side."""
    step = max(PER_SERVER, devices // 16)
    return list(range(step, devices, step))


def points(tail: str, devices: int) -> Iterator[Point]:
    """All of one tail and size."""
    yield Point("sync", tail, devices, 0, 0.0)
    for warmup in WARMUPS:
        yield Point("colocate_async", tail, devices, 0, warmup)
        for rollout in splits(devices):
            yield Point("separate_async", tail, devices, rollout, warmup)


def best(tail: str, devices: int, fitted: Fitted) -> dict[str, Point]:
    """Per mode and batches ahead, the split with the most samples per second by the closed form."""
    found: dict[str, tuple[float, Point]] = {}
    for point in points(tail, devices):
        rate = predict(point.setup(fitted)).samples_per_s
        name = name_of(point)
        if name not in found or rate > found[name][0]:
            found[name] = rate, point
    return {name: point for name, (_, point) in found.items()}


def name_of(point: Point) -> str:
    """`sync`, `colocate_async/1` ..."""
    return point.mode if point.mode == "sync" else f"{point.mode}/{point.warmup:g}"


def sweep(fitted: Fitted, told: Callable[[int, int], None], workers: int = 2) -> list[dict[str, Any]]:
    """One row per tail, size and mode: best split, closed form and simulation. `told` hears (done, of)."""
    chosen = [point for tail in TAILS for devices in DEVICES for point in best(tail, devices, fitted).values()]
    rows = []
    with ProcessPoolExecutor(workers) as pool:
        for done, row in enumerate(pool.map(_row, chosen, [fitted] * len(chosen)), start=1):
            rows.append(row)
            told(done, len(chosen))
    return rows


def _row(point: Point, fitted: Fitted) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    setup = point.setup(fitted)
    closed, run = predict(setup), simulate(setup)
    window = run.window(5, setup.steps - 3)
    return {
        **asdict(point),
        "name": name_of(point),
        "split": f"{point.rollout}:{point.devices - point.rollout}" if point.rollout else "shared",
        "closed_samples_per_s": closed.samples_per_s,
        "samples_per_s": window.samples_per_s,
        "samples_per_s_per_device": window.samples_per_s / point.devices,
        "staleness": closed.staleness,
        "rollout_busy": run.rollout_busy,
        "train_busy": run.train_busy,
    }


def winners(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per tail and size: the fastest, and how it stands to sync and to the runner-up of another mode."""
    found = []
    for tail in TAILS:
        for devices in DEVICES:
            here = [row for row in rows if row["tail"] == tail and row["devices"] == devices]
            ranked = sorted(here, key=lambda row: -row["samples_per_s"])
            first = ranked[0]
            rival = next(row for row in ranked if row["mode"] != first["mode"])
            sync = next(row for row in here if row["mode"] == "sync")
            found.append(
                {
                    "tail": tail,
                    "devices": devices,
                    "best": first["name"],
                    "split": first["split"],
                    "over_sync": first["samples_per_s"] / sync["samples_per_s"],
                    "over_next_mode": first["samples_per_s"] / rival["samples_per_s"],
                    "best_separate_split": max(
                        (row for row in here if row["mode"] == "separate_async"), key=lambda row: row["samples_per_s"]
                    )["split"],
                }
            )
    return found


def curve(tail: str, devices: int, fitted: Fitted, warmup: float = 1.0) -> list[tuple[float, float]]:
    """(share of the devices that roll out, samples per second) of separate_async, by the closed form."""
    curve_points = [Point("separate_async", tail, devices, rollout, warmup) for rollout in splits(devices)]
    return [(point.rollout / devices, predict(point.setup(fitted)).samples_per_s) for point in curve_points]


def ahead(tail: str, devices: int, fitted: Fitted) -> list[tuple[float, float]]:
    """(batches ahead, samples per second) of colocate_async."""
    setup = Point("colocate_async", tail, devices, 0, 1.0).setup(fitted)
    return [(w, predict(replace(setup, warmup=w)).samples_per_s) for w in (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8)]

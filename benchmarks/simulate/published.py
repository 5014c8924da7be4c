"""verl's published table of its three V1 modes, and what the simulator makes of its conditions.

Source: verl, docs/advance/v1_async_trainer.md, "V1 trainer all modes" (state of 2026-09-16). Stated: Qwen3.5-35B-A3B,
Megatron TP2 PP2 CP2 EP4, vLLM TP4, four nodes of eight devices (separate_async: two and two), 64 prompts a step in
four mini-batches of 16, 2,048 + 32,768 tokens, one batch ahead, staleness bound 8 with `drop`, 150 steps; per mode the
hours, tokens per second and mean response length.

Not stated, and where it comes from here:
    n, prompt tokens   from the table itself: hours x tokens/s / 150 / 64 is 8.0 x (mean response + 155) in all three
                       rows, so n = 8 and prompts have 155 tokens; `implied_samples` checks it
    spread of lengths  log-normal with the stated mean, cut at 32,768; sigma is assumed and bracketed
    decoding           t0 + t1 x running: t0 is fitted, the growth t1 x 64 / t0 is assumed and bracketed
    training           seconds per token and device: fitted
    turning over       sleep + publication + wake, and reading of cut-off responses: assumed and bracketed

So two numbers are fitted to three rows, and what is left over is the error. Beside it, harder: each row predicted from
the two others, and everything again for other assumptions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from benchmarks.simulate.closed_form import predict
from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import LogNormal
from benchmarks.simulate.run import Setup, simulate

STEPS: Final = 150
BATCH, MINIS, SAMPLES, CAP, PROMPT = 64, 4, 8, 32_768, 155
DEVICES, PER_SERVER = 32, 4


@dataclass(frozen=True)
class Row:
    """One row of the table: hours for 150 steps, tokens per second, mean response."""

    hours: float
    tokens_per_s: float
    response: float

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.hours * 3600 / STEPS

    @property
    def implied_samples(self) -> float:
        """Responses per prompt, if prompts have PROMPT tokens."""
        return self.step_s * self.tokens_per_s / BATCH / (self.response + PROMPT)


TABLE: Final = {
    "sync": Row(22.79, 12_053, 12_720),
    "colocate_async": Row(14.72, 18_852, 12_854),
    "separate_async": Row(14.10, 18_829, 12_288),
}


@dataclass(frozen=True)
class Assumed:
    """What is neither stated nor fitted.

    Attributes:
        sigma: of the log lengths.
        growth: share by which a token takes longer with 64 requests on a server than with none.
        turn_s: sleep, publication and wake together; half of it is publication.
        read_tokens_per_s: of a server, for prompts and responses that go on.
        streams: mini-batches that separate_async trains on as they come.
    """

    sigma: float = 0.8
    growth: float = 0.25
    turn_s: float = 15.0
    read_tokens_per_s: float = 100_000.0
    streams: int = MINIS


CENTRE: Final = Assumed()
BRACKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "sigma": (0.6, 0.8, 1.0),
    "growth": (0.0, 0.25, 0.4, 0.5, 1.0),
    "turn_s": (5.0, 15.0, 30.0),
    "read_tokens_per_s": (40_000.0, 100_000.0, 1e9),
    "streams": (1, MINIS),
}


@dataclass(frozen=True)
class Fitted:
    """Seconds per token of a lone request; seconds per token of a training device."""

    t0: float
    token_s: float


def setup_of(mode: str, assumed: Assumed, fitted: Fitted, steps: int = STEPS) -> Setup:
    """The row's conditions."""
    apart = mode == "separate_async"
    devices = DEVICES // 2 if apart else DEVICES
    publish = assumed.turn_s / 2
    rest = 0.0 if apart else assumed.turn_s / 4
    return Setup(
        mode=mode,
        lengths=LogNormal.with_mean(TABLE[mode].response, assumed.sigma, CAP),
        servers=devices // PER_SERVER,
        server=ServerSpeed(fitted.t0, assumed.growth * fitted.t0 / 64, read_s=1.0 / assumed.read_tokens_per_s),
        trainer=TrainerSpeed(fitted.token_s, devices, publish_s=publish, sleep_s=rest, wake_s=rest),
        batch_size=BATCH,
        n=SAMPLES,
        steps=steps,
        prompt_tokens=PROMPT,
        workers=8,
        grain=512,
        streams=assumed.streams if apart else 1,
    )


def errors(assumed: Assumed, fitted: Fitted) -> dict[str, float]:
    """Predicted over published step time of each row, less 1."""
    return {mode: predict(setup_of(mode, assumed, fitted)).step_s / row.step_s - 1.0 for mode, row in TABLE.items()}


@lru_cache
def fit_all(assumed: Assumed) -> Fitted:
    """The two speeds that come nearest to the three rows: least squares of the logarithms of the step times.

    There are two valleys, one where separate_async waits for its servers and one where it waits for its trainer, so the
    best few places of a coarse grid are each followed down.
    """
    spread = [4.0 ** (k / 7 - 1) for k in range(15)]
    grid = [Fitted(0.008 * f, 0.0006 * g) for f in spread for g in spread]
    best = sorted(grid, key=lambda c: _squares(assumed, c))[:5]
    return min((_descend(assumed, start) for start in best), key=lambda c: _squares(assumed, c))


def _descend(assumed: Assumed, start: Fitted) -> Fitted:
    span = 1.2
    for _ in range(9):
        near = [span ** (k / 2 - 1) for k in range(5)]
        around = [Fitted(start.t0 * f, start.token_s * g) for f in near for g in near]
        start, span = min(around, key=lambda c: _squares(assumed, c)), span**0.55
    return start


def _squares(assumed: Assumed, fitted: Fitted) -> float:
    return sum(math.log1p(error) ** 2 for error in errors(assumed, fitted).values())


def fit_two(assumed: Assumed, rows: tuple[str, str]) -> list[Fitted]:
    """All pairs of speeds that give the step times of two rows exactly; there may be none, and there may be two: one
    where separate_async waits for its servers, one where it waits for its trainer."""
    first, second = rows

    def training_for(t0: float) -> float:
        """Training speed that gives the second row."""
        low, high = 0.0, 1e-2
        for _ in range(30):
            middle = (low + high) / 2
            step = predict(setup_of(second, assumed, Fitted(t0, middle))).step_s
            low, high = (middle, high) if step < TABLE[second].step_s else (low, middle)
        return (low + high) / 2

    def excess(t0: float) -> float:
        return predict(setup_of(first, assumed, Fitted(t0, training_for(t0)))).step_s - TABLE[first].step_s

    found = []
    grid = [0.002 * 1.07**k for k in range(33)]  # 2 to 17 ms
    seen = [excess(t0) for t0 in grid]
    for (low, at_low), (high, at_high) in itertools.pairwise(zip(grid, seen, strict=True)):
        if at_low * at_high > 0:
            continue
        for _ in range(20):
            middle = (low + high) / 2
            value = excess(middle)
            low, high, at_low = (middle, high, value) if value * at_low > 0 else (low, middle, at_low)
        if training_for(middle) > 1e-7 and abs(excess(middle)) < 1.0:
            found.append(Fitted(middle, training_for(middle)))
    return found


def left_out(assumed: Assumed) -> list[dict[str, Any]]:
    """Each row predicted from the two others."""
    rows = []
    for mode in TABLE:
        others = tuple(other for other in TABLE if other != mode)
        for fitted in fit_two(assumed, (others[0], others[1])):
            rows.append({"predicted": mode, "from": others, **_speeds(fitted), "error": errors(assumed, fitted)[mode]})
    return rows


def bracket() -> list[dict[str, Any]]:
    """One assumption varied at a time: speeds fitted to all three rows, and how far off the ratios to sync stay."""
    rows = []
    for name, values in BRACKETS.items():
        for value in values:
            assumed = _with(name, value)
            fitted = fit_all(assumed)
            off = errors(assumed, fitted)
            ratios = {mode: (1 + off[mode]) / (1 + off["sync"]) - 1 for mode in off if mode != "sync"}
            worst = max(abs(error) for error in ratios.values())
            rows.append({"assumed": f"{name} = {value:g}", **_speeds(fitted), "ratio_errors": ratios, "worst": worst})
    return rows


def _speeds(fitted: Fitted) -> dict[str, float]:
    return {"t0_ms": fitted.t0 * 1e3, "train_tokens_per_s_per_device": 1.0 / fitted.token_s}


def _with(name: str, value: float) -> Assumed:
    changes: dict[str, Any] = {name: value}
    return replace(CENTRE, **changes)


def simulated_hours(assumed: Assumed, fitted: Fitted, steps: int = STEPS) -> dict[str, float]:
    """Hours of each row's 150 steps: simulated with `steps` steps, whole run, warm-up included."""
    runs = {mode: simulate(setup_of(mode, assumed, fitted, steps)) for mode in TABLE}
    return {mode: run.closed_at[-1] / 3600 * STEPS / steps for mode, run in runs.items()}

"""Scales of a chart: round tick values and the mapping to pixels. Invariant: every finite point lies inside the
axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Points = list[tuple[float, float]]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten that lie in [low, high]; ascending."""
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_label(value: float) -> str:
    """`0.25`, `40`, `1.5k`, `2e-05`."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.6g}" if size >= 1e-4 or value == 0 else f"{value:.0e}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear map of [low, high] to [start, end] pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def spanning(values: Sequence[float], start: float, end: float, pad: float = 0.06, zero: bool = False) -> Scale:
    """Scale over the finite values, with `pad` of the range free at both ends; from exactly 0 when `zero`."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if zero:
        low, high = 0.0, max(high, 1e-12)
        return Scale(low, high * (1 + pad), start, end)
    if low == high == 0.0:  # a count or a share that never moved: its axis starts at 0
        return Scale(0.0, 1.0, start, end)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    room = (high - low) * pad
    return Scale(low - room, high + room, start, end)


def smoothed(points: Points, share: float = 0.12) -> Points:
    """Local linear fit, triangular window over `share` of the points to either side (at least 3): unlike a running
    mean it neither lags behind a trend nor bends at the ends.
    """
    reach = max(3, round(len(points) * share))
    return [(points[index][0], _local_fit(points, index, reach)) for index in range(len(points))]


def _local_fit(points: Points, index: int, reach: int) -> float:
    """Value at `index` of the weighted least-squares line through its neighbours."""
    first, last = max(0, index - reach), min(len(points), index + reach + 1)
    near = [(1.0 - abs(other - index) / (reach + 1), *points[other]) for other in range(first, last)]
    mass = sum(weight for weight, _, _ in near)
    middle = sum(weight * x for weight, x, _ in near) / mass
    mean = sum(weight * y for weight, _, y in near) / mass
    spread = sum(weight * (x - middle) ** 2 for weight, x, _ in near)
    slope = sum(weight * (x - middle) * (y - mean) for weight, x, y in near) / spread if spread else 0.0
    return mean + slope * (points[index][0] - middle)

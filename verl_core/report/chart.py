"""Charts as inline SVG. Invariant: no script, no colour of its own: strokes and fills are CSS classes, so that one page
serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from verl_core.metrics.headline import short
from verl_core.report.scale import Points, Scale, smoothed, spanning, tick_label, ticks

WIDTH, HEIGHT = 460, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 24
_SMOOTH_FROM = 16  # points; a shorter curve is drawn as it is
_MARKS = 160  # hover marks per line at most


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        points: (step, value), ascending; non-finite values are left out.
        color: 1-8, the palette of the style sheet.
        smooth: draw a mean line over the faint raw one.
        dots: few points, each worth seeing.
    """

    name: str
    points: Points
    color: int = 1
    smooth: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Layer:
    """One layer of a stacked chart; values aligned with the others'."""

    name: str
    values: list[float]
    color: int


def line_chart(lines: Sequence[Line], label: str, zero: bool = False) -> str:
    """SVG of lines over steps; `label` is read out by screen readers. Empty when there is no point."""
    lines = [Line(ln.name, _finite(ln.points), ln.color, ln.smooth, ln.dots) for ln in lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    across = spanning([x for x, _ in points], LEFT, WIDTH - RIGHT, pad=0.0)
    up = spanning([y for _, y in points], HEIGHT - BOTTOM, TOP, zero=zero)
    return _svg(label, _axes(across, up) + "".join(_draw(line, across, up) for line in lines))


def stacked_chart(steps: Sequence[int], layers: Sequence[Layer], label: str, unit: str) -> str:
    """SVG of stacked bars, one per step; neighbours are averaged when there are more than fit."""
    if not steps or not layers:
        return ""
    steps, layers = _binned(steps, layers, 60)
    totals = [sum(layer.values[index] for layer in layers) for index in range(len(steps))]
    up = spanning(totals, HEIGHT - BOTTOM, TOP, zero=True)
    slot = (WIDTH - LEFT - RIGHT) / len(steps)
    across = Scale(0, len(steps), LEFT, WIDTH - RIGHT)
    bars = []
    for index, step in enumerate(steps):
        base = 0.0
        for layer in layers:
            value = layer.values[index]
            top, bottom = up(base + value), up(base)
            base += value
            if value > 0:
                bars.append(
                    f'<rect class="f{layer.color}" x="{across(index) + slot * 0.1:.1f}" y="{top:.1f}" '
                    f'width="{slot * 0.8:.1f}" height="{max(0.0, bottom - top):.1f}">'
                    f"<title>step {step}: {escape(layer.name)} {short(value)} {escape(unit)}</title></rect>"
                )
    every = max(1, math.ceil(len(steps) / 6))
    labels = [(across(index + 0.5), str(steps[index])) for index in range(0, len(steps), every)]
    return _svg(label, _grid(up) + _x_labels(labels) + "".join(bars))


def histogram(bars: Sequence[tuple[str, float]], label: str, unit: str) -> str:
    """SVG of one bar per (name, value). Empty when there is nothing to show."""
    if not any(value > 0 for _, value in bars):
        return ""
    up = spanning([value for _, value in bars], HEIGHT - BOTTOM, TOP, zero=True)
    across = Scale(0, len(bars), LEFT, WIDTH - RIGHT)
    slot = (WIDTH - LEFT - RIGHT) / len(bars)
    drawn = [
        f'<rect class="f1" x="{across(index) + slot * 0.15:.1f}" y="{up(value):.1f}" width="{slot * 0.7:.1f}" '
        f'height="{up(0) - up(value):.1f}"><title>{escape(name)}: {short(value)} {escape(unit)}</title></rect>'
        for index, (name, value) in enumerate(bars)
    ]
    labels = [(across(index + 0.5), escape(name)) for index, (name, _) in enumerate(bars)]
    return _svg(label, _grid(up) + _x_labels(labels) + "".join(drawn))


def legend(entries: Sequence[tuple[str, int]]) -> str:
    """HTML legend of (name, colour)."""
    items = "".join(f'<li><i class="b{color}"></i>{escape(name)}</li>' for name, color in entries)
    return f'<ul class="legend">{items}</ul>'


def _svg(label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _axes(across: Scale, up: Scale) -> str:
    whole = [value for value in ticks(across.low, across.high, 6) if value == int(value)] or [across.low]
    return _grid(up) + _x_labels([(across(value), tick_label(value)) for value in whole])


def _grid(up: Scale) -> str:
    rules = []
    for value in ticks(up.low, up.high, 6):
        y = up(value)
        rules.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        rules.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick_label(value)}</text>'
        )
    base = HEIGHT - BOTTOM
    return "".join(rules) + f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>'


def _x_labels(labels: Sequence[tuple[float, str]]) -> str:
    y = HEIGHT - BOTTOM + 15
    return "".join(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{text}</text>' for x, text in labels)


def _draw(line: Line, across: Scale, up: Scale) -> str:
    parts = []
    if line.smooth and len(line.points) >= _SMOOTH_FROM:
        parts.append(_path(line.points, across, up, f"s{line.color} raw"))
        parts.append(_path(smoothed(line.points), across, up, f"s{line.color}"))
    else:
        parts.append(_path(line.points, across, up, f"s{line.color}"))
    every = max(1, math.ceil(len(line.points) / _MARKS))
    shown = line.dots or len(line.points) == 1
    for x, y in line.points[::every]:
        parts.append(
            f'<circle class="{f"f{line.color}" if shown else "hit"}" cx="{across(x):.1f}" cy="{up(y):.1f}" '
            f'r="{3.5 if shown else 5}"><title>step {x:g}: {escape(line.name)} {short(y)}</title></circle>'
        )
    return "".join(parts)


def _path(points: Points, across: Scale, up: Scale, css: str) -> str:
    steps = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    return f'<polyline class="{css}" points="{steps}"/>'


def _binned(steps: Sequence[int], layers: Sequence[Layer], most: int) -> tuple[list[int], list[Layer]]:
    size = math.ceil(len(steps) / most)
    starts = range(0, len(steps), size)
    return [steps[start] for start in starts], [
        Layer(layer.name, [_mean(layer.values[start : start + size]) for start in starts], layer.color)
        for layer in layers
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

"""out/simulate.html: the numbers of simulate.json as tables and charts. Invariant: it computes nothing; what it shows
is in the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from verl_core.report.chart import Line, legend, line_chart
from verl_core.report.style import stylesheet

_HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'


def page(details: dict[str, Any]) -> str:
    """The whole page."""
    body = "".join(
        [
            "<h1>make simulate</h1>",
            '<p class="lead">The trainer, its buffer and its staleness policies under a virtual clock</p>',
            _card("Closed form, simulator and the real loop on this machine", _agreement(details["agreement"]["real"])),
            _card("Closed form and simulator, larger settings", _agreement(details["agreement"]["large"])),
            _card("verl's table of three modes", _published(details["published"])),
            _card("Each row of that table predicted from the two others", _left_out(details["published"])),
            _card("The ratios under other assumptions", _other(details["published"])),
            "<h2>Strong scaling: 2,048 responses a step</h2>",
            f'<div class="grid2">{_charts(details)}</div>',
            _card("Where each mode wins", _winners(details["sweep"]["winners"])),
        ]
    )
    head = f"<head>{_HEAD}<title>make simulate · verl-flyte</title><style>{stylesheet()}</style></head>"
    return f'<!doctype html><html lang="en">{head}<body><main>{body}</main></body></html>\n'


def _card(title: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="card scroll">{body}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """HTML; the first column is text, the others are numbers."""
    tops = "".join(f"<th{' class=n' if place else ''}>{escape(head)}</th>" for place, head in enumerate(heads))
    lines = [
        "".join(f"<td{' class=n' if place else ''}>{escape(cell)}</td>" for place, cell in enumerate(row))
        for row in rows
    ]
    return f"<table><tr>{tops}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _agreement(rows: Sequence[dict[str, Any]]) -> str:
    accounts = list(rows[0]["samples_per_s"])
    named = [account.replace("_", " ") for account in accounts]
    heads = ["", *[f"samples/s, {n}" for n in named], "gap", *[f"staleness, {n}" for n in named], "gap"]
    lines = []
    for row in rows:
        speed = [f"{row['samples_per_s'][account]:.3f}" for account in accounts]
        age = [f"{row['staleness'][account]:.3f}" for account in accounts]
        gaps = f"{row['samples_per_s_gap']:.1%}", f"{row['staleness_gap']:.1%}"
        lines.append([row["scenario"], *speed, gaps[0], *age, gaps[1]])
    return table(heads, lines)


def _published(found: dict[str, Any]) -> str:
    hours = [
        [
            mode,
            f"{row['published']:.2f} h",
            f"{row['simulated']:.2f} h",
            f"{row['simulated'] / row['published'] - 1:+.1%}",
        ]
        for mode, row in found["hours"].items()
    ]
    ratios = [
        [f"{mode} : sync", f"{row['published']:.3f}", f"{row['simulated']:.3f}", f"{row['error']:+.1%}"]
        for mode, row in found["ratio_to_sync"].items()
    ]
    return table(["", "published", "simulated", "off by"], [*hours, *ratios])


def _left_out(found: dict[str, Any]) -> str:
    rows = [
        [
            row["predicted"],
            " and ".join(row["from"]),
            f"{row['t0_ms']:.1f} ms",
            f"{row['train_tokens_per_s_per_device']:,.0f}",
            f"{row['error']:+.1%}",
        ]
        for row in found["predicted_from_two_rows"]
    ]
    return table(["row", "speeds fitted on", "t0", "training tokens/s per device", "off by"], rows)


def _other(found: dict[str, Any]) -> str:
    rows = [
        [
            row["assumed"],
            f"{row['t0_ms']:.1f} ms",
            f"{row['train_tokens_per_s_per_device']:,.0f}",
            *[f"{error:+.1%}" for error in row["ratio_errors"].values()],
        ]
        for row in found["other_assumptions"]
    ]
    return table(["assumed", "t0", "training tokens/s per device", "colocate : sync", "separate : sync"], rows)


def _charts(details: dict[str, Any]) -> str:
    split = [
        Line(f"{devices} devices", [(100 * share, rate) for share, rate in points], color=place)
        for place, (devices, points) in enumerate(details["curves"]["split"].items(), start=1)
    ]
    ahead = [
        Line(f"{tail} tail", points, color=place)
        for place, (tail, points) in enumerate(details["curves"]["ahead"].items(), start=1)
    ]
    return _figure("separate_async: samples/s by share of the devices that roll out, %", split) + _figure(
        "colocate_async, 256 devices: samples/s by batches served ahead", ahead
    )


def _figure(title: str, lines: Sequence[Line]) -> str:
    names = legend([(line.name, line.color) for line in lines])
    chart = line_chart(lines, title, zero=True)
    return f'<figure class="card"><figcaption>{escape(title)}</figcaption>{chart}{names}</figure>'


def _winners(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        [
            row["tail"],
            f"{row['devices']:,}",
            row["best"],
            row["split"],
            f"{row['over_sync']:.2f} x",
            f"{row['over_next_mode']:.2f} x",
            row["best_separate_split"],
        ]
        for row in rows
    ]
    heads = ["tail", "devices", "fastest (mode/batches ahead)", "split", "over sync", "over the next mode"]
    return table([*heads, "best split of separate_async"], lines)

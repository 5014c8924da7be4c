"""out/bench_modes.html: the numbers as pictures. Invariant: one file, no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from verl_core.report.chart import Line, legend, line_chart
from verl_core.report.style import stylesheet

COLORS = {"sync": 1, "colocate_async": 2, "separate_async": 3}
_PARTS = (
    ("sampling", "every slot samples", 1),
    ("empty_slots", "slots are empty", 5),
    ("training", "training", 4),
    ("other", "rest of the loop", 8),
)
_GAINS = {
    "no_tail_wait": "no waiting for the last response",
    "overlap": "training beside generation",
    "fewer_rollout_devices": "fewer devices generate",
    "lending": "lending (off)",
    "rest": "rest",
    "saved": "saved per step",
}


def page(result: Mapping[str, Any]) -> str:
    """The whole page, from what out/bench_modes.json holds."""
    body = "".join(
        [
            f"<h1>Three modes on {result['conditions']['devices']} simulated devices</h1>",
            f'<p class="lead">{escape(result["text"])}</p>',
            _goals(result["goals"]),
            '<h2>Speed</h2><div class="grid2">',
            _bars(result["times"]),
            _table_card("Each mode beside its bound", *_modes_table(result["modes"])),
            '</div><h2>Where the gain comes from</h2><div class="grid2">',
            _table_card("Seconds of a step, against sync on the same devices", *_gains_table(result["mechanisms"])),
            _staleness(result["modes"]),
            '</div><h2>Learning</h2><div class="grid2">',
            _curves(result["modes"], "wall_s", "Reward over seconds"),
            _curves(result["modes"], "samples", "Reward over samples"),
            '</div><h2>Real vLLM on this machine</h2><div class="grid2">',
            _table_card("Quickstart, means of a step", *_vllm_table(result["vllm"])),
            f'<p class="card">{escape(result["vllm_text"])}</p></div>',
        ]
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>bench-modes</title>'
    return (
        f"<!doctype html><html><head>{head}<style>{stylesheet()}</style></head><body><main>{body}</main></body></html>"
    )


def _goals(goals: Sequence[Mapping[str, Any]]) -> str:
    tiles = (
        f'<div class="card tile"><b class="{"up" if goal["ok"] else "bad"}">{_short(goal["value"])}</b>'
        f"<span>{escape(goal['name'])}</span><small>goal {goal['op']} {_short(goal['goal'])}</small></div>"
        for goal in goals
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _bars(times: Mapping[str, Mapping[str, float]]) -> str:
    """One bar per mode: the seconds of a step."""
    longest = max(parts["step"] for parts in times.values())
    rows = []
    for mode, parts in times.items():
        pieces = "".join(
            f'<i class="b{color}" style="display:inline-block;height:18px;width:{100 * parts[name] / longest:.2f}%" '
            f'title="{label}: {parts[name]:.2f} s"></i>'
            for name, label, color in _PARTS
            if parts.get(name, 0.0) > 0
        )
        rows.append(
            f'<p style="margin:8px 0 0"><small>{escape(mode)}: {parts["step"]:.2f} s a step</small></p>'
            f'<div style="white-space:nowrap;font-size:0">{pieces}</div>'
        )
    names = legend([(label, color) for _, label, color in _PARTS])
    note = '<p class="dim"><small>separate_async trains beside it, on devices of its own.</small></p>'
    return f'<figure class="card"><figcaption>A step</figcaption>{"".join(rows)}{names}{note}</figure>'


def _modes_table(modes: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    numbers = {
        "samples_per_s": "samples/s",
        "of_bound": "of its bound",
        "of_bound_whole_run": "… with start and end",
        "rollout_busy": "rollout busy",
        "rollout_slots_busy": "slots busy",
        "trainer_busy": "trainer busy",
        "discarded_share": "discarded",
        "staleness_mean": "staleness",
        "reward_end": "reward at the end",
    }
    rows = [[label, *(_short(mode[name]["mean"]) for mode in modes.values())] for name, label in numbers.items()]
    return ["", *modes], rows


def _gains_table(mechanisms: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    rows = [[label, *(f"{gain[name]:+.2f}" for gain in mechanisms.values())] for name, label in _GAINS.items()]
    rows.append(["times as fast", *(_short(gain["factor"]) for gain in mechanisms.values())])
    return ["", *mechanisms], rows


def _vllm_table(modes: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    names = list(next(iter(modes.values()), {}))
    return ["", *modes], [[name, *(_short(mode[name]) for mode in modes.values())] for name in names]


def _table_card(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f'<th class="n">{escape(name)}</th>' if name else "<th></th>" for name in head)
    body = "".join(
        f"<tr><td>{escape(row[0])}</td>" + "".join(f'<td class="n">{escape(cell)}</td>' for cell in row[1:]) + "</tr>"
        for row in rows
    )
    table = f'<div class="scroll"><table><tr>{cells}</tr>{body}</table></div>'
    return f'<figure class="card"><figcaption>{escape(title)}</figcaption>{table}</figure>'


def _staleness(modes: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        Line(
            mode,
            [(float(age), share) for age, share in numbers["staleness_histogram"].items()],
            COLORS[mode],
            dots=True,
        )
        for mode, numbers in modes.items()
        if mode in COLORS
    ]
    return _figure("Groups by staleness (versions)", lines, zero=True)


def _curves(modes: Mapping[str, Mapping[str, Any]], across: str, title: str) -> str:
    lines = [
        Line(mode, [(point[across], point["reward"]) for point in numbers["reward_curve"]], COLORS[mode])
        for mode, numbers in modes.items()
        if mode in COLORS
    ]
    return _figure(title, lines)


def _figure(title: str, lines: Sequence[Line], zero: bool = False) -> str:
    chart = line_chart(lines, title, zero) + legend([(line.name, line.color) for line in lines])
    return f'<figure class="card"><figcaption>{escape(title)}</figcaption>{chart}</figure>'


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

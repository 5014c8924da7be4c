"""What only an asynchronous run has: how old its samples were, and who worked when. Invariant: a synchronous run gets
no empty card."""

from __future__ import annotations

from html import escape

from verl_core.metrics.headline import short
from verl_core.report.chart import Layer, Line, histogram, legend, line_chart, stacked_chart
from verl_core.report.view import RunView

ROWS = "training/staleness_rows/"
_TRAIN = ("old_log_prob", "ref", "values", "update_actor", "update_critic")


def asynchrony_cards(view: RunView) -> str:
    """Staleness histogram, weight versions over steps, devices' time; empty for a run whose samples were never old."""
    if not any(value > 0 for _, value in view.series("training/staleness/max")):
        return ""
    return "".join([_staleness(view), _versions(view), _trainer_time(view), _rollout_time(view)])


def staleness_counts(view: RunView) -> dict[int, float]:
    """Trained trajectories by staleness."""
    counts: dict[int, float] = {}
    for row in view.rows.values():
        for name, value in row.items():
            if name.startswith(ROWS):
                age = int(name.removeprefix(ROWS))
                counts[age] = counts.get(age, 0.0) + value
    return counts


def _staleness(view: RunView) -> str:
    counts = staleness_counts(view)
    if not counts:
        return ""
    total = sum(counts.values())
    mean = sum(age * count for age, count in counts.items()) / total
    bars = [(str(age), counts.get(age, 0.0)) for age in range(max(counts) + 1)]
    chart = histogram(bars, "Trained responses by staleness", "responses")
    return _card("Staleness, in weight versions", f"mean {short(mean)}", chart)


def _versions(view: RunView) -> str:
    """Behind the trainer: the versions themselves only count the steps."""
    names = (("oldest token", "max", 4), ("mean", "mean", 1))
    lines = [Line(name, view.series(f"training/staleness/{key}"), color) for name, key, color in names]
    chart = line_chart(lines, "Weight versions behind the trainer, over steps", zero=True)
    return _card("Weight versions behind the trainer", "", chart, [(line.name, line.color) for line in lines])


def _trainer_time(view: RunView) -> str:
    steps = [step for step in view.trained_steps if "timing_s/step" in view.rows[step]]
    train, wait, other = [], [], []
    for step in steps:
        row = view.rows[step]
        work = sum(row.get(f"timing_s/{part}", 0.0) for part in _TRAIN)
        idle = row.get("timing_s/gen", 0.0)
        train.append(work)
        wait.append(idle)
        other.append(max(0.0, row["timing_s/step"] - work - idle))
    layers = [Layer("train", train, 4), Layer("wait for groups", wait, 1), Layer("other", other, 8)]
    chart = stacked_chart(steps, layers, "Seconds of the trainer's devices over steps", "s")
    total = sum(train) + sum(wait) + sum(other)
    share = f"{100 * sum(train) / total:.0f}% training" if total else ""
    return _card("The trainer's time", share, chart, [(layer.name, layer.color) for layer in layers])


def _rollout_time(view: RunView) -> str:
    steps = [step for step in view.trained_steps if "rollout/busy_s" in view.rows[step]]
    busy = [view.rows[step]["rollout/busy_s"] for step in steps]
    idle = [max(0.0, view.rows[step]["rollout/clock_s"] - view.rows[step]["rollout/busy_s"]) for step in steps]
    layers = [Layer("generate", busy, 1), Layer("idle", idle, 8)]
    chart = stacked_chart(steps, layers, "Seconds of the mean server over steps", "s")
    total = sum(busy) + sum(idle)
    share = f"{100 * sum(busy) / total:.0f}% generating" if total else ""
    return _card("The servers' time", share, chart, [(layer.name, layer.color) for layer in layers])


def _card(title: str, value: str, chart: str, names: list[tuple[str, int]] | None = None) -> str:
    if not chart:
        return ""
    shown = f"<span>{escape(value)}</span>" if value else ""
    key = legend(names) if names else ""
    return f'<figure class="card"><figcaption>{escape(title)}{shown}</figcaption>{chart}{key}</figure>'

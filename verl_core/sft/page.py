"""The report of a fine-tuning run: one self-contained HTML page. Invariant: all that it shows is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from verl_core.config import to_yaml
from verl_core.config.schema import RunConfig
from verl_core.metrics.headline import short
from verl_core.report.chart import Line
from verl_core.report.curves import curve_card
from verl_core.report.frame import document, section, settings

Rows = Mapping[int, Mapping[str, float]]
Exam = Mapping[str, float] | None

_CHARTS = (
    ("Loss", (("training", "sft/loss"), ("validation", "val/loss"))),
    ("Chance to sample the answer", (("validation", "val/sampled_accuracy"),)),
    ("Gradient norm", (("norm", "sft/grad_norm"),)),
    ("Learning rate", (("rate", "sft/lr"),)),
    ("Tokens per second", (("tokens/s", "perf/throughput"),)),
)


def sft_page(config: RunConfig, rows: Rows, before: Exam, after: Exam) -> str:
    """HTML of the run.

    Args:
        rows: metrics by step.
        before, after: validation at both ends.
    """
    name = config.trainer.experiment_name
    model = config.actor_rollout_ref.model.path.rstrip("/").rpartition("/")[2]
    body = "".join(
        [
            f"<h1>{escape(name)}</h1>",
            f'<p class="lead">supervised fine-tuning · model {escape(model)} · {max(rows, default=0)} steps</p>',
            _table(before, after),
            section("Curves", "".join(_charts(rows)), "grid2"),
            settings(to_yaml(config)),
        ]
    )
    return document(name, body)


def _table(before: Exam, after: Exam) -> str:
    if after is None:
        return ""
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{short(before[name]) if before else ""}</td>'
        f'<td class="n">{short(value)}</td></tr>'
        for name, value in after.items()
    )
    heads = '<tr><th>Validation</th><th class="n">before</th><th class="n">after</th></tr>'
    return f'<section><div class="card scroll"><table>{heads}{cells}</table></div></section>'


def _charts(rows: Rows) -> list[str]:
    cards = []
    for title, series in _CHARTS:
        drawn = []
        for color, (name, key) in enumerate(series, start=1):
            points = [(float(step), numbers[key]) for step, numbers in sorted(rows.items()) if key in numbers]
            exam = key.startswith("val/")
            if points:
                drawn.append(Line(name, points, color, smooth=not exam, dots=exam))
        cards.append(curve_card(title, drawn))
    return cards

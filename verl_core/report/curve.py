"""The learning curve alone, as an SVG file: for README and slides. Invariant: stands by itself, in light and in
dark.
"""

from __future__ import annotations

from html import escape

from verl_core.metrics import headline
from verl_core.record.rundir import RunDir
from verl_core.report.chart import HEIGHT, WIDTH, Line, line_chart
from verl_core.report.style import CHART, marks, palette
from verl_core.report.view import RunView

_TITLE = 46  # pixels above the chart: title and legend


def curve_svg(rundir: RunDir, title: str = "") -> str:
    """Reward per step with its running mean, and the first validation score as dots. Empty when no step is done."""
    view = RunView.load(rundir)
    lines = [Line("reward of the step", view.series(*headline.REWARD), 1, smooth=True)]
    lines += [
        Line(f"validation, {name}", points, 2, dots=True) for name, points in list(view.validations().items())[:1]
    ]
    chart = line_chart(lines, title or view.name)
    if not chart:
        return ""
    lines = [line for line in lines if line.points]
    # The colours of the page's root, given to the picture itself: `:root` of a lone SVG is its own element.
    style = f"<style>{palette()}{marks()}{CHART}.name{{fill:var(--ink);font-weight:600}}</style>"
    ground = f'<rect width="{WIDTH}" height="{HEIGHT + _TITLE}" rx="8" style="fill:var(--card)"/>'
    heading = f'<text class="name" x="14" y="20">{escape(title or view.name)}</text>' + _legend(lines)
    inner = chart.replace("<svg ", f'<svg y="{_TITLE}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT + _TITLE}" width="{WIDTH * 2}" height="{(HEIGHT + _TITLE) * 2}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{ground}{heading}{inner}</svg>\n'


def _legend(lines: list[Line]) -> str:
    """One row under the title; widths are estimated, for an SVG cannot measure text without a script."""
    parts, left = [], 14.0
    for line in lines:
        parts.append(f'<circle class="f{line.color}" cx="{left + 4:.0f}" cy="34" r="3.5"/>')
        parts.append(f'<text class="tick" x="{left + 12:.0f}" y="38">{escape(line.name)}</text>')
        left += 12 + 6.3 * len(line.name) + 16
    return "".join(parts)

"""The page holds what the run recorded, escapes it, and is whole for every state of a run."""

from __future__ import annotations

import math
import re
import uuid
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.demo import HOSTILE, build, char
from verl_core.record.rundir import RunDir
from verl_core.report import curve_svg, render_report, write_report
from verl_core.report.chart import HEIGHT, WIDTH, Layer, Line, line_chart, stacked_chart
from verl_core.report.scale import smoothed, tick_label, ticks
from verl_core.report.view import RunView

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Outline(HTMLParser):
    """Checks that every tag is closed in order, and keeps text, titles, and what would be run or fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.titles: list[str] = []
        self.foreign: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script" or {"src", "href", "onclick", "onload"} & known.keys():
            self.foreign.append(tag)
        self.titles += [known["title"] or ""] if "title" in known else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """`<rect .../>` opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)


@pytest.fixture(scope="module")
def run() -> RunDir:
    run = RunDir(f"memory://{uuid.uuid4().hex}")
    build(run, steps=40)
    return run


def test_the_page_shows_every_section_of_a_finished_run(run: RunDir) -> None:
    written = write_report(run, char)
    assert written.path == "report.html"
    html = run.read(written.path).decode()
    page = Outline(html)
    assert page.foreign == []
    for title in ("Curves", "Samples", "Accounts", "Checkpoints", "Versions", "Configuration", "Reward", "Validation"):
        assert title in page.text
    for title in (
        "Entropy",
        "Clip fraction",
        "Gradient norm",
        "Response length",
        "Time per stage",
        "Tokens per second",
    ):
        assert title in page.text
    assert html.count("<svg") == 11
    rewards = [row["critic/score/mean"] for step, row in sorted(RunView.load(run).rows.items()) if step]
    before, after = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert f"{before:.2f} → {after:.2f}" in page.text
    assert "0.61 → 0.96" in page.text  # validation before, and after the last step
    assert "1:01" in page.text  # 61.4 s of summary.json
    assert "vllm" in page.text
    # 40 steps of 4 rows, one of them dropped in step 17.
    assert re.search(r"served 160 .* trained 159 .* dropped 1 .* in flight 0 .* lost 0", page.words)
    assert "The books balance." in page.text
    assert page.text.count("latest") == 1
    assert "checkpoints/000020" in page.text


def test_all_text_is_escaped(run: RunDir) -> None:
    html = render_report(run, char)
    assert "<script" not in html
    page = Outline(html)
    assert f"timeout {HOSTILE}" in page.text  # a reason in the table
    assert f"quarantined: ValueError: {HOSTILE}" in page.text
    cells = "".join(page.text)
    assert HOSTILE in cells  # a response, put together from its tokens


def test_tokens_carry_their_log_prob_and_tool_text_is_apart(run: RunDir) -> None:
    page = Outline(render_report(run, char))
    tips = [re.fullmatch(r"log-prob (-?[\d.]+) · p ([\d.]+) · id \d+", title) for title in page.titles]
    numbers = [(float(tip[1]), float(tip[2])) for tip in tips if tip]
    assert len(numbers) > 60
    assert all(math.isclose(math.exp(log_prob), p, abs_tol=1e-3) for log_prob, p in numbers)
    assert any(title.startswith("not sampled by the policy") for title in page.titles)


def test_ids_stand_for_text_without_a_tokenizer(run: RunDir) -> None:
    assert "⟨60⟩" in render_report(run)


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_a_run_without_any_step_and_one_that_runs(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path) if kind == "local" else RunDir(f"memory://{uuid.uuid4().hex}")
    empty = Outline(render_report(run))
    assert "Curves" not in empty.text
    assert "no step is done yet" in empty.words
    assert curve_svg(run) == ""
    build(run, steps=1, finished=False, name="<b>odd & name")
    page = Outline(render_report(run, char))
    assert "still running" in page.words
    assert "<b>odd & name" in page.text
    assert "Samples" in page.text


def test_a_damaged_checkpoint_is_told_in_the_table() -> None:
    run = RunDir(f"memory://{uuid.uuid4().hex}")
    build(run, steps=20)
    run.publish_bytes("checkpoints/000020/MANIFEST.json", b"{")
    assert "MANIFEST.json is damaged" in Outline(render_report(run, char)).words


def test_the_curve_is_a_picture_by_itself(run: RunDir) -> None:
    svg = curve_svg(run, "GRPO & friends")
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "GRPO & friends" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 3  # raw, smooth, validation
    assert "prefers-color-scheme:dark" in svg


FINITE = st.floats(-1e9, 1e9)


@given(FINITE, st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_round_ascending_and_inside(low: float, span: float, count: int) -> None:
    span = max(span, abs(low) * 1e-3)
    found = ticks(low, low + span, count)
    assert 1 <= len(found) <= count + 1 or count == 2
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in found)
    if len(found) > 1:
        step = found[1] - found[0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(mantissa - round_step) for round_step in (1, 2, 5)) < 1e-2


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=30), st.booleans())
def test_every_finite_point_is_drawn_inside_the_frame(values: list[float], zero: bool) -> None:
    if zero:
        values = [abs(value) for value in values]
    svg = line_chart([Line("v", [(float(step), y) for step, y in enumerate(values)], 1)], "label", zero)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert svg == ""
        return
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="([^"]*)"', svg)[0].split()]
    assert len(points) == len(finite)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    order = sorted(range(len(finite)), key=lambda index: finite[index])
    heights = [points[index][1] for index in order]
    assert heights == sorted(heights, reverse=True)  # larger values are higher up


def test_stacked_bars_add_up_and_are_averaged_when_there_are_too_many() -> None:
    steps = list(range(1, 121))
    svg = stacked_chart(steps, [Layer("a", [1.0] * 120, 1), Layer("b", [3.0] * 120, 2)], "time", "s")
    heights = {name: [float(h) for h in re.findall(rf'class="f{name}"[^>]*height="([\d.]+)"', svg)] for name in (1, 2)}
    assert len(heights[1]) == len(heights[2]) == 60
    assert heights[2][0] == pytest.approx(3 * heights[1][0], abs=0.2)
    assert "step 3: b 3.000 s" in svg


def test_the_smooth_line_neither_lags_nor_bends() -> None:
    line = [(float(x), 3.0 * x - 7.0) for x in range(50)]
    assert smoothed(line) == [pytest.approx(point) for point in line]
    noisy = [(float(x), (-1.0) ** x) for x in range(50)]
    assert max(abs(y) for _, y in smoothed(noisy)[8:-8]) < 0.1
    assert smoothed([(1.0, 5.0)]) == [(1.0, 5.0)]


def test_tick_labels() -> None:
    labels = [tick_label(value) for value in (0.25, 40.0, 15000.0, 2e6, 2e-5, 0.0)]
    assert labels == ["0.25", "40", "15k", "2M", "2e-05", "0"]

"""The cards of an asynchronous run: counts by hand, and nothing of them in a synchronous one."""

from __future__ import annotations

import re
from pathlib import Path

from verl_core.record.rundir import RunDir
from verl_core.record.step_record import write_metrics
from verl_core.report.asynchrony import asynchrony_cards, staleness_counts
from verl_core.report.chart import histogram
from verl_core.report.view import RunView


def view_of(root: Path, rows: list[dict[str, float]]) -> RunView:
    run = RunDir(root)
    for step, row in enumerate(rows, start=1):
        write_metrics(run, step, row)
    return RunView.load(run)


STALE = [
    {
        "training/staleness/mean": 0.0,
        "training/staleness/max": 0.0,
        "training/staleness_rows/0": 8.0,
        "timing_s/step": 4.0,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
    },
    {
        "training/staleness/mean": 0.75,
        "training/staleness/max": 2.0,
        "training/staleness_rows/0": 5.0,
        "training/staleness_rows/2": 3.0,
        "timing_s/step": 4.0,
        "timing_s/gen": 0.5,
        "timing_s/update_actor": 2.0,
        "timing_s/old_log_prob": 1.0,
        "rollout/clock_s": 4.0,
        "rollout/busy_s": 3.0,
    },
]


def test_a_synchronous_run_has_no_such_cards(tmp_path: Path) -> None:
    assert asynchrony_cards(view_of(tmp_path, STALE[:1])) == ""


def test_rows_are_counted_by_staleness_over_all_steps(tmp_path: Path) -> None:
    assert staleness_counts(view_of(tmp_path, STALE)) == {0: 13.0, 2: 3.0}


def test_the_cards_show_age_versions_and_both_sides_time(tmp_path: Path) -> None:
    cards = asynchrony_cards(view_of(tmp_path, STALE))
    assert re.findall(r"<title>(\d): (\S+) responses", cards) == [("0", "13.0"), ("1", "0"), ("2", "3.000")]
    assert "mean 0.375" in cards  # 6 of 16
    assert "50% training" in cards  # (1 + 3) of 8 s
    assert "75% generating" in cards
    assert re.findall(r"<title>step 2: oldest token ([^<]+)", cards) == ["2.000"]
    assert "step 2: wait for groups 0.500 s" in cards


def test_bars_are_as_high_as_their_values() -> None:
    drawn = histogram([("a", 4.0), ("b", 1.0)], "label", "things")
    heights = [float(height) for height in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]
    assert abs(heights[0] / heights[1] - 4) < 0.1
    assert histogram([("a", 0.0)], "label", "things") == ""

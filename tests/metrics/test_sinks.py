"""What the loggers write, and that a resumed run reads on where it stopped."""

from __future__ import annotations

import io
import math
import uuid
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl_core.config import RunConfig
from verl_core.config.names import LOGGERS
from verl_core.errors import ConfigError
from verl_core.metrics import MetricSinks, open_sinks
from verl_core.metrics.console import ConsoleSink
from verl_core.metrics.headline import duration, pick, short
from verl_core.metrics.jsonl import JsonlSink, read_rows
from verl_core.metrics.pace import Pace
from verl_core.metrics.sink import RunInfo
from verl_core.metrics.sinks import SINKS
from verl_core.record.rundir import RunDir

NUMBERS = {
    "critic/score/mean": 0.53125,
    "actor/ppo_kl": 0.0012,
    "actor/entropy": 1.25,
    "response_length/mean": 18.2,
    "perf/throughput": 4213.0,
    "timing_s/step": 1.5,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_logger_of_the_schema_exists() -> None:
    assert tuple(SINKS) == LOGGERS


def test_unknown_logger_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'tensorbord' is unknown; did you mean 'tensorboard'\? Known loggers: console"
    ):
        MetricSinks(["console", "tensorbord"], RunInfo(RunDir(tmp_path), "run", 3))


def test_the_bar_names_project_and_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[RunInfo] = []
    monkeypatch.setitem(SINKS, "jsonl", lambda run: told.append(run) or JsonlSink(run))  # type: ignore[func-returns-value]
    config = RunConfig()
    config.trainer.logger, config.trainer.project_name, config.trainer.experiment_name = ["jsonl"], "sums", "second"
    with open_sinks(config, RunDir(tmp_path), 3):
        assert [run.name for run in told] == ["sums/second"]


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_rows_come_back_and_the_last_of_a_step_wins(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path) if kind == "local" else RunDir(f"memory://{uuid.uuid4().hex}")
    config = RunConfig()
    config.trainer.logger = ["jsonl"]
    with open_sinks(config, run, 3) as sinks:
        sinks.log(1, {"a": 1.0, "val-core/x": 0.5})
        sinks.log(2, {"a": 2.0, "b": math.nan})
    with open_sinks(config, run, 3, done_steps=1) as sinks:
        sinks.log(2, {"a": 3.0})
    rows = read_rows(run)
    assert [(row.step, row.metrics["a"]) for row in rows] == [(1, 1.0), (2, 3.0)]
    assert math.isnan(rows[1].metrics["b"])
    assert rows[1].time >= rows[0].time > 1e9


def test_a_line_that_a_crash_tore_is_not_a_row(tmp_path: Path) -> None:
    config = RunConfig()
    config.trainer.logger = ["jsonl"]
    with open_sinks(config, RunDir(tmp_path), 3) as sinks:
        sinks.log(1, {"a": 1.0})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 2, "ti')
    assert [row.step for row in read_rows(RunDir(tmp_path))] == [1]
    with open_sinks(config, RunDir(tmp_path), 3) as sinks:
        sinks.log(2, {"a": 2.0})
    assert [row.step for row in read_rows(RunDir(tmp_path))] == [1, 2]


@pytest.mark.parametrize("kind", ["local", "object store"])
def test_tensorboard_hides_the_abandoned_steps(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path) if kind == "local" else RunDir(f"memory://{uuid.uuid4().hex}")
    for done, steps in ((0, (1, 2, 3)), (1, (2,))):
        sinks = MetricSinks(["tensorboard"], RunInfo(run, "run", 3, done))
        for step in steps:
            sinks.log(step, {"critic/score/mean": step + done / 10})
        sinks.close()
    folder = tmp_path / "events"
    run.storage.download("tensorboard", folder)
    events = EventAccumulator(str(folder))
    events.Reload()
    points = [(point.step, round(point.value, 3)) for point in events.Scalars("critic/score/mean")]
    assert points == [(1, 1.0), (2, 2.1)]


def test_plain_lines_when_it_is_no_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    sink = ConsoleSink(RunInfo(RunDir(tmp_path), "run", 12), out)
    sink.log(0, {"val-core/sums/reward/mean@1": 0.4})
    sink.log(1, {**NUMBERS, "val-core/sums/reward/mean@1": 0.5})
    sink.close()
    first, second, third = out.getvalue().splitlines()
    assert first == "step  0/12  validation: sums/reward/mean@1 0.400"
    assert second.startswith(
        "step  1/12  reward 0.531  kl 0.0012  entropy 1.250  length 18.2  tokens/s 4213  s/step 1.500  left 0:0"
    )
    assert third == "step  1/12  validation: sums/reward/mean@1 0.500"


def test_samples_without_a_score_are_counted_on_the_line(tmp_path: Path) -> None:
    out = io.StringIO()
    sink = ConsoleSink(RunInfo(RunDir(tmp_path), "run", 12), out)
    for step, lost in ((1, 0.0), (2, 7.0)):
        sink.log(step, {**NUMBERS, "reward/quarantined": lost})
    sink.close()
    first, second = out.getvalue().splitlines()
    assert "unscored" not in first
    assert "reward 0.531  unscored 7  kl" in second


def test_a_terminal_gets_a_bar_below_the_lines(tmp_path: Path) -> None:
    out = Terminal()
    sink = ConsoleSink(RunInfo(RunDir(tmp_path), "sums", 12, done_steps=4), out)
    sink.log(5, NUMBERS)
    sink.close()
    text = out.getvalue()
    assert "step  5/12  reward 0.531" in text
    last = text.replace("\n", "\r").rstrip("\r").split("\r")[-1]
    assert last.startswith("sums ")
    assert "5/12" in last
    assert "reward 0.531, 4213 tokens/s" in last


def test_time_left_is_judged_by_the_last_steps() -> None:
    now = [100.0]
    pace = Pace(30, clock=lambda: now[0])
    assert pace.left is None
    now[0] += 50
    pace.mark(0)
    assert pace.left is None
    for step in range(1, 26):
        now[0] += 10 if step <= 5 else 2
        pace.mark(step)
    assert (pace.step_seconds, pace.left) == (2.0, 10.0)

    resumed = Pace(30, clock=lambda: now[0])
    now[0] += 3
    resumed.mark(21)
    assert (resumed.step_seconds, resumed.left) == (3.0, 27.0)


def test_numbers_for_people() -> None:
    assert [short(value) for value in (0.0, 5e-5, 0.0012, 0.531, 18.24, 731.2, 4213.0, 42137.0, 1.3e6, -0.25)] == [
        "0",
        "5.0e-05",
        "0.0012",
        "0.531",
        "18.2",
        "731",
        "4213",
        "42.1k",
        "1.3M",
        "-0.250",
    ]
    assert (short(math.nan), duration(7.4), duration(760), duration(10931)) == ("nan", "0:07", "12:40", "3:02:11")
    assert pick({"a": math.nan, "b": 2.0}, ("a", "b")) == 2.0
    assert pick({}, ("a",)) is None

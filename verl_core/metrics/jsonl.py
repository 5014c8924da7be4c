"""metrics.jsonl: one durable line per logged step. Invariant: the last line of a step wins, so a resumed run only
appends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from verl_core.metrics.sink import RunInfo
from verl_core.record.append_log import open_log, read_log
from verl_core.record.canonical import compact
from verl_core.record.json_lines import parse_lines, whole_lines
from verl_core.record.rundir import RunDir

PATH = "metrics.jsonl"


class JsonlSink:
    """Lines `{"step": 12, "time": unix seconds, "critic/score/mean": 0.5, ...}`; NaN becomes null."""

    def __init__(self, run: RunInfo) -> None:
        self._file = open_log(run.rundir.storage, PATH, whole_lines)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        line = compact({**metrics, "step": step, "time": round(time.time(), 3)})
        with self._file.exclusive():
            self._file.write(line + b"\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Numbers of one step; `time` is when it was logged last, unix seconds."""

    step: int
    time: float
    metrics: dict[str, float]


def read_rows(rundir: RunDir) -> list[MetricRow]:
    """All steps, in order. A step that was logged several times has the union, later values first.

    Raises:
        RecordError: a line inside the file is damaged.
    """
    rows: dict[int, MetricRow] = {}
    for line in parse_lines(read_log(rundir.storage, PATH, whole_lines), rundir.url(PATH)):
        step, logged = int(line.pop("step")), float(line.pop("time"))
        values = {name: float("nan") if value is None else float(value) for name, value in line.items()}
        before = rows[step].metrics if step in rows else {}
        rows[step] = MetricRow(step, logged, {**before, **values})
    return [rows[step] for step in sorted(rows)]

"""RunView: what a report shows, read from the run directory. Invariant: works on a run that has just begun,
still runs, or is over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import yaml

from verl_core.errors import CheckpointError
from verl_core.metrics.headline import validation
from verl_core.metrics.jsonl import read_rows
from verl_core.record.accounting import Accounting, account
from verl_core.record.checkpoints import FOLDER, LATEST
from verl_core.record.journal import read_events
from verl_core.record.manifest import NAME as MANIFEST
from verl_core.record.manifest import CheckpointManifest
from verl_core.record.rundir import CONFIG, RunDir
from verl_core.record.step_record import METRICS, StepRecord, has_step_record, read_metrics, read_step_record
from verl_core.report.scale import Points

SUMMARY = "summary.json"
VALIDATION = "validation.json"


@dataclass(frozen=True)
class CheckpointEntry:
    """A row of the table of checkpoints; `note` says when it is damaged."""

    path: str
    step: int
    saved_at: float
    nbytes: int
    is_latest: bool
    note: str = ""


@dataclass
class RunView:
    """Attributes:
    rows: metrics by step.
    summary: summary.json of a finished run, else empty.
    first_time, last_time: unix seconds of the first and last event; 0 without a journal.
    """

    rundir: RunDir
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    accounts: Accounting | None = None
    checkpoints: list[CheckpointEntry] = field(default_factory=list)
    last_record: StepRecord | None = None
    first_time: float = 0.0
    last_time: float = 0.0

    @classmethod
    def load(cls, rundir: RunDir) -> RunView:
        """Read everything but trajectories."""
        view = cls(rundir)
        if rundir.exists(CONFIG):
            view.config_text = rundir.read(CONFIG).decode()
            view.config = yaml.safe_load(view.config_text) or {}
        if rundir.exists(SUMMARY):
            view.summary = json.loads(rundir.read(SUMMARY))
        view.rows = _rows(rundir)
        events = read_events(rundir)
        if events:
            view.accounts = account(events)
            view.first_time, view.last_time = events[0].time, events[-1].time
        view.checkpoints = _checkpoints(rundir)
        done = [step for step in view.trained_steps if has_step_record(rundir, step)]
        view.last_record = read_step_record(rundir, done[-1]) if done else None
        return view

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.config_value("trainer.experiment_name") or self.rundir.root.rstrip("/").rsplit("/", 1)[-1])

    @property
    def trained_steps(self) -> list[int]:
        """Steps with training metrics, in order."""
        return [step for step in sorted(self.rows) if step > 0]

    def config_value(self, key: str) -> Any:
        """A setting by its dotted name, None when the run has no configuration file."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def series(self, *names: str) -> Points:
        """(step, value) of the first of `names` that the run logged."""
        for name in names:
            points = [(float(step), self.rows[step][name]) for step in sorted(self.rows) if name in self.rows[step]]
            if points:
                return points
        return []

    def validations(self) -> dict[str, Points]:
        """(step, value) of every validation score, by a name for people: `gsm8k mean@4`."""
        found: dict[str, Points] = {}
        for step in sorted(self.rows):
            for name, value in validation(self.rows[step]).items():
                found.setdefault(name.replace("/reward/", " "), []).append((float(step), value))
        return found


def _rows(rundir: RunDir) -> dict[int, dict[str, float]]:
    """metrics.jsonl, overlaid with the durable files of each step."""
    rows = {row.step: dict(row.metrics) for row in read_rows(rundir)}
    for step in rundir.steps():
        names = rundir.names(rundir.step_dir(step))
        if METRICS in names:
            rows.setdefault(step, {}).update(read_metrics(rundir, step))
        if VALIDATION in names:
            values = json.loads(rundir.read(f"{rundir.step_dir(step)}/{VALIDATION}"))
            rows.setdefault(step, {}).update(
                {name: float(value) for name, value in values.items() if value is not None}
            )
    return rows


def _checkpoints(rundir: RunDir) -> list[CheckpointEntry]:
    latest = rundir.read(LATEST).decode(errors="replace").strip() if rundir.exists(LATEST) else ""
    entries = []
    for name in rundir.names(FOLDER):
        path = f"{FOLDER}/{name}"
        try:
            if not rundir.exists(f"{path}/{MANIFEST}"):
                raise CheckpointError(f"no {MANIFEST}")
            manifest = CheckpointManifest.from_json(rundir.read(f"{path}/{MANIFEST}"))
        except CheckpointError as error:
            entries.append(CheckpointEntry(path, -1, 0.0, 0, path == latest, str(error)))
            continue
        size = sum(manifest.nbytes.values())
        entries.append(CheckpointEntry(path, manifest.step, manifest.saved_at, size, path == latest))
    return entries

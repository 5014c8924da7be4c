"""StepRecord: the durable account of one step. Invariant: it is published last; a step is done exactly when its record
exists.

record.json is canonical JSON; metrics.json beside it holds the step's numbers.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from verl_core.errors import RecordError
from verl_core.record.canonical import pretty
from verl_core.record.rundir import Published, RunDir

NAME = "record.json"
METRICS = "metrics.json"


@dataclass(frozen=True)
class StepRecord:
    """Attributes:
    step: global step.
    version_in, version_out: weight version the step was sampled and started from, and the one it gave.
    inputs: sha256 by path (relative to the run directory) of what the update read.
    uids: groups that were trained on.
    config_hash: of the resolved configuration.
    code_version: see `code_version`.
    counts: groups, rows, tokens, quarantined, dropped, ...
    timings: seconds by stage.
    device_seconds: cost: devices held x wall seconds.
    weights_sha256: digest of the weights after the step, when it was taken.
    checkpoint: path of the checkpoint, when the step was saved.
    """

    step: int
    version_in: int
    version_out: int
    inputs: dict[str, str] = field(default_factory=dict)
    uids: tuple[str, ...] = ()
    config_hash: str = ""
    code_version: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    device_seconds: float = 0.0
    weights_sha256: str = ""
    checkpoint: str = ""

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return pretty(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, name: str = NAME) -> StepRecord:
        """Inverse of `to_json`.

        Raises:
            RecordError: not a step record of this version.
        """
        known = {item.name for item in fields(cls)}
        try:
            value: dict[str, Any] = json.loads(data)
            if set(value) != known:
                raise ValueError(f"fields differ: {sorted(set(value) ^ known)}")
            return cls(**{**value, "uids": tuple(value["uids"])})
        except ValueError as error:
            raise RecordError(f"{name} is not a step record of this version: {error}") from error


def write_step_record(rundir: RunDir, record: StepRecord) -> Published:
    """Publish the record: the step is done."""
    return rundir.publish_bytes(f"{rundir.step_dir(record.step)}/{NAME}", record.to_json())


def read_step_record(rundir: RunDir, step: int) -> StepRecord:
    """Raises RecordError when the step is not done or its record is damaged."""
    path = f"{rundir.step_dir(step)}/{NAME}"
    return StepRecord.from_json(rundir.read(path), rundir.url(path))


def has_step_record(rundir: RunDir, step: int) -> bool:
    """Whether the step is done."""
    return rundir.exists(f"{rundir.step_dir(step)}/{NAME}")


def write_metrics(rundir: RunDir, step: int, metrics: Mapping[str, float]) -> Published:
    """Publish metrics.json of a step; NaN becomes null."""
    return rundir.publish_bytes(f"{rundir.step_dir(step)}/{METRICS}", pretty(metrics))


def read_metrics(rundir: RunDir, step: int) -> dict[str, float]:
    """Inverse of `write_metrics`; null becomes NaN."""
    values: dict[str, float | None] = json.loads(rundir.read(f"{rundir.step_dir(step)}/{METRICS}"))
    return {name: float("nan") if value is None else value for name, value in values.items()}


@functools.cache
def code_version() -> str:
    """`git:<sha>` with `-dirty` for uncommitted changes, else `verl-flyte <version>`, else `unknown`."""
    try:
        # Not every repository around this file is ours: an installed package may lie inside somebody else's checkout.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return "git:" + _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):  # no git here, or not a checkout
        pass
    try:
        return f"verl-flyte {importlib.metadata.version('verl-flyte')}"
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

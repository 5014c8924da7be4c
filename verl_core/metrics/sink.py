"""MetricSink: what a logger is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from verl_core.record.rundir import RunDir


class MetricSink(Protocol):
    """Gets every step's numbers once, in the order of the steps; after a resume, steps of the abandoned line again."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of one step. The mapping is not kept."""

    def close(self) -> None:
        """Write out what is held. Idempotent."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a sink may want to know of the run.

    Attributes:
        name: shown on the progress bar.
        total_steps: last global step.
        done_steps: steps done before this process; not 0 after a resume.
    """

    rundir: RunDir
    name: str
    total_steps: int
    done_steps: int = 0

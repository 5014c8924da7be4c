"""What nodes hand each other. Invariant: files are named where they lie, never copied; numbers are dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from verl_core.trainer.stage import StageOutput


@dataclass
class StageNote:
    """A finished stage of a step.

    Attributes:
        stage: rollout, reward, advantage or update; update of step 0 is the start.
        sha256: of the stage's file, hex; empty at the start. The next stage refuses to go on from another content.
        checkpoint: folder of the checkpoint this step left, empty when none was due.
        metrics: numbers of the stage, seconds under `timing_s/`.
    """

    stage: Literal["rollout", "reward", "advantage", "update"] = "update"
    step: int = 0
    sha256: str = ""
    checkpoint: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class RolloutReport:
    """What a rollout side of its own did; zeros where there was none. See verl_core.trainer.rollout_side."""

    seconds: float = 0.0
    tokens: int = 0
    restarts: int = 0


class Opened(NamedTuple):
    """Outputs of the run's first node. Later nodes take the configuration from here: one literal, not one per node."""

    config: dict
    note: StageNote


class StageResult(NamedTuple):
    """Outputs of a stage's node: its file in the run directory, and what there is to say about it."""

    file: FlyteFile
    note: StageNote


def stage_result(output: StageOutput) -> StageResult:
    """The literals of a stage's output."""
    note = StageNote(output.stage, output.step, output.sha256, output.checkpoint, dict(output.metrics))
    return StageResult(file_in_place(output.path), note)


def file_in_place(path: str) -> FlyteFile:
    """A FlyteFile that is neither copied nor uploaded: run directories lie on storage that every node reaches."""
    return FlyteFile(path, remote_path=None if "://" in path else False)


def folder_in_place(path: str) -> FlyteDirectory:
    """The same for a folder."""
    return FlyteDirectory(path, remote_directory=None if "://" in path else False)


def location(literal: FlyteFile | FlyteDirectory) -> str:
    """Path or URL of a literal made by `file_in_place` or `folder_in_place`, without downloading it."""
    return str(literal.remote_source or literal.path)

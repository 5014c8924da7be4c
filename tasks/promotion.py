"""Dated runs and the gate behind them. Invariant: the pointer moves only to a checkpoint that passed the gate."""

from __future__ import annotations

import json
from datetime import datetime
from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.literals import file_in_place, location
from tasks.ray_config import SUBMITTER
from verl_core.config import resolve
from verl_core.errors import GateError
from verl_core.record.rundir import RunDir

POINTER = "promoted.json"


class Promoted(NamedTuple):
    """The pointer file, and the score that passed."""

    pointer: FlyteFile
    score: float


@task(requests=SUBMITTER)
def dated(config: dict, overrides: list[str], kickoff: datetime) -> list[str]:
    """The overrides, with the time of the kickoff in the run's name: each scheduled run has a directory of its own."""
    name = resolve(config, overrides).config.trainer.experiment_name
    return [*overrides, f"trainer.experiment_name={name}-{kickoff:%Y%m%d-%H%M}"]


@task(requests=SUBMITTER)
def promote(
    config: dict, overrides: list[str], summary: FlyteFile, checkpoint: FlyteDirectory, floor: float
) -> Promoted:
    """Point `promoted.json`, beside the run directories, at the checkpoint if its validation reward reaches `floor`.

    Raises:
        GateError: it does not, or the run had no validation; the execution fails, and the pointer stays where it was.
    """
    place = RunDir(resolve(config, overrides).config.trainer.default_local_dir)
    score = json.loads(RunDir(location(summary).rpartition("/")[0]).read("summary.json"))["val_after"]
    if score is None or score < floor:
        raise GateError(f"validation reward {score} of {location(checkpoint)} is below {floor}: not promoted")
    note = {"checkpoint": location(checkpoint), "val_after": score, "floor": floor, "summary": location(summary)}
    return Promoted(file_in_place(place.url(place.publish_bytes(POINTER, json.dumps(note).encode()).path)), score)

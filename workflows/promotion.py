"""train_and_promote: a dated training run and, behind a gate on its validation reward, a pointer to its checkpoint."""

from __future__ import annotations

from datetime import datetime

from flytekit import workflow

from tasks.promotion import Promoted, dated, promote
from workflows.train import train


@workflow
def train_and_promote(config: dict, overrides: list[str], kickoff: datetime, floor: float) -> Promoted:
    """Train from scratch in a directory named after the kickoff; promote the result or fail.

    Args:
        config: settings, as for `train`.
        overrides: key=value, applied last.
        kickoff: when the schedule fired; becomes part of the run's name.
        floor: lowest validation reward that is promoted.
    """
    named = dated(config=config, overrides=overrides, kickoff=kickoff)
    done = train(config=config, overrides=named)
    return promote(config=config, overrides=overrides, summary=done.summary, checkpoint=done.checkpoint, floor=floor)

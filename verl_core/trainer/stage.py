"""StageOutput: what a stage hands on, small enough for a Flyte literal. The file it names is the durable truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StageName = Literal["rollout", "reward", "advantage", "update"]


@dataclass(frozen=True, slots=True)
class StageOutput:
    """Attributes:
    stage, step: which.
    path: file (rollout, reward, advantage) or step record (update), as a path or URL.
    sha256: of that file.
    metrics: numbers of this stage, seconds under `timing_s/`.
    checkpoint: folder, when this step was checkpointed.
    """

    stage: StageName
    step: int
    path: str
    sha256: str
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str = ""

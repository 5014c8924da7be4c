"""teacher.safetensors: what the teachers said of a step's responses. Invariant: it belongs to one order of rows, and is
refused for any other."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from verl_core.batch import TrainBatch
from verl_core.errors import RecordError
from verl_core.record.canonical import compact
from verl_core.record.rundir import Published, RunDir
from verl_core.trajectory import Float32, Int32

NAME = "teacher.safetensors"
FORMAT = "verl-flyte teacher scores 1"
_ROWS = "rows"


@dataclass(frozen=True)
class TeacherScores:
    """Aligned with TrainBatch.response_ids of the step, N tokens.

    Attributes:
        log_probs: float32 [N], nats; NaN on rows that nobody trains on.
        topk_ids: int32 [N, K]; K may be 0.
        topk_log_probs: float32 [N, K].
    """

    log_probs: Float32
    topk_ids: Int32
    topk_log_probs: Float32


def write_teacher(rundir: RunDir, step: int, batch: TrainBatch, scores: TeacherScores) -> Published:
    """Publish the scores of the rows of `batch`."""
    return rundir.publish_bytes(f"{rundir.step_dir(step)}/{NAME}", pack_teacher(batch, scores))


def read_teacher(rundir: RunDir, step: int, batch: TrainBatch) -> TeacherScores | None:
    """Inverse of `write_teacher`; None when there are none.

    Raises:
        RecordError: damaged, or of other rows than those of `batch`.
    """
    path = f"{rundir.step_dir(step)}/{NAME}"
    return unpack_teacher(rundir.read(path), batch, rundir.url(path)) if rundir.exists(path) else None


def pack_teacher(batch: TrainBatch, scores: TeacherScores) -> bytes:
    """Safetensors bytes."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(values) for name, values in vars(scores).items()}
    data: bytes = save(arrays, metadata={_ROWS: compact(_rows(batch)).decode()})
    return data


def unpack_teacher(data: bytes, batch: TrainBatch, name: str = NAME) -> TeacherScores:
    """Inverse of `pack_teacher`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
        length = int.from_bytes(data[:8], "little")
        rows = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ROWS])
    except (SafetensorError, ValueError, KeyError) as error:
        raise RecordError(f"{name} is not a whole file of teacher scores: {error}") from error
    if rows != json.loads(compact(_rows(batch))):
        raise RecordError(f"{name} holds scores of other rows than the step's; delete it, and the teachers are asked")
    return TeacherScores(*(np.array(arrays[field]) for field in ("log_probs", "topk_ids", "topk_log_probs")))


def _rows(batch: TrainBatch) -> dict[str, object]:
    return {"format": FORMAT, "keys": batch.keys, "lengths": batch.response_lengths.tolist()}

"""StepFiles: what each stage of each step left in the run directory. Invariant: a stage is done when, and only when,
its file is there; memory is only a shortcut to what was just written.

    rollout -> trajectories.parquet    reward -> rewards.parquet    advantage -> batch.safetensors    update ->
    record.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_core.batch import TrainBatch
from verl_core.record.batch_file import read_batch, write_batch
from verl_core.record.rewards import pack_rewards, read_rewards, unpack_rewards, write_rewards
from verl_core.record.rundir import Published, RunDir
from verl_core.record.spool import StepSpool
from verl_core.record.step_record import StepRecord, read_step_record, write_metrics, write_step_record
from verl_core.record.teacher_file import TeacherScores, read_teacher, write_teacher
from verl_core.record.trajectories import read_trajectories, write_trajectories
from verl_core.trainer.feed import FeedState
from verl_core.trainer.stage import StageName, StageOutput
from verl_core.trajectory import Reward, Trajectory

FILES: dict[StageName, str] = {
    "rollout": "trajectories.parquet",
    "reward": "rewards.parquet",
    "advantage": "batch.safetensors",
    "update": "record.json",
}
SCORED = "scored.parquet"
VALIDATION = "validation.json"
FEED = "feed.json"
LENDING = "lending.json"
SAMPLING = "sampling.json"


@dataclass(frozen=True, slots=True)
class UpdateDraft:
    """An update that happened in the policy's memory and is not recorded yet."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    weights_sha256: str = ""


class StepFiles:
    """Args:
    run: the run directory.
    """

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._memory: dict[tuple[StageName, int], Any] = {}
        self._outputs: dict[tuple[StageName, int], StageOutput] = {}

    def path(self, stage: StageName, step: int) -> str:
        """Path of a stage's file inside the run directory."""
        return f"{RunDir.step_dir(step)}/{FILES[stage]}"

    def finished(self, stage: StageName, step: int) -> StageOutput | None:
        """The stage's output if its file is there."""
        if (stage, step) in self._outputs:
            return self._outputs[stage, step]
        path = self.path(stage, step)
        if not self.run.exists(path):
            return None
        digest = hashlib.sha256(self.run.read(path)).hexdigest()
        checkpoint = read_step_record(self.run, step).checkpoint if stage == "update" else ""
        output = StageOutput(stage, step, self.run.url(path), digest, self._read_note(stage, step), checkpoint)
        self._outputs[stage, step] = output
        return output

    def first_open_step(self, start: int) -> int:
        """The first step after `start` without a record."""
        step = start + 1
        while self.finished("update", step) is not None:
            step += 1
        return step

    def spool(self, step: int) -> StepSpool:
        """Groups of the step that settled so far."""
        return StepSpool(self.run, step)

    def feed(self, step: int) -> FeedState | None:
        """Where serving stood after the rollout of `step`; None when nothing was ahead, open or replaced."""
        path = f"{RunDir.step_dir(step)}/{FEED}"
        return FeedState.from_json(json.loads(self.run.read(path))) if self.run.exists(path) else None

    def save_feed(self, step: int, state: FeedState) -> None:
        """Publish it: before the trajectories, which make the rollout done."""
        self.run.publish_bytes(f"{RunDir.step_dir(step)}/{FEED}", json.dumps(state.to_json()).encode())

    def sampling(self, step: int) -> dict[str, Any] | None:
        """What a sampler drew for `step`, and its state then; None without one."""
        path = f"{RunDir.step_dir(step)}/{SAMPLING}"
        return json.loads(self.run.read(path)) if self.run.exists(path) else None

    def save_sampling(self, step: int, kept: dict[str, Any]) -> None:
        """Publish it: before the trajectories, which make the rollout done."""
        self.run.publish_bytes(f"{RunDir.step_dir(step)}/{SAMPLING}", json.dumps(kept).encode())

    def lending(self, step: int) -> dict[str, Any] | None:
        """State of lending after `step`; None where nothing was lent."""
        path = f"{RunDir.step_dir(step)}/{LENDING}"
        return json.loads(self.run.read(path)) if self.run.exists(path) else None

    def save_lending(self, step: int, state: dict[str, Any]) -> None:
        """Publish it."""
        self.run.publish_bytes(f"{RunDir.step_dir(step)}/{LENDING}", json.dumps(state).encode())

    def save_trajectories(self, step: int, rows: list[Trajectory], metrics: dict[str, float]) -> StageOutput:
        """Publish the rollout's output; the spool has then served."""
        self._write_note("rollout", step, metrics)
        output = self._keep("rollout", step, rows, write_trajectories(self.run, step, rows), metrics)
        self.spool(step).remove()
        return output

    def trajectories(self, step: int) -> list[Trajectory]:
        """Rows in (ordinal, session, index) order."""
        held = self._memory.get(("rollout", step))
        return held if held is not None else read_trajectories(self.run, step)

    def scored(self, step: int) -> list[Reward] | None:
        """Scores that the step's trajectories got while they were sampled; None when they got none."""
        path = f"{RunDir.step_dir(step)}/{SCORED}"
        return unpack_rewards(self.run.read(path), path) if self.run.exists(path) else None

    def save_scored(self, step: int, rewards: list[Reward]) -> None:
        """Publish them: before the trajectories, which make the rollout done."""
        self.run.publish_bytes(f"{RunDir.step_dir(step)}/{SCORED}", pack_rewards(rewards))

    def save_rewards(self, step: int, rewards: list[Reward], metrics: dict[str, float]) -> StageOutput:
        """Publish the scores, aligned with the trajectories."""
        self._write_note("reward", step, metrics)
        return self._keep("reward", step, rewards, write_rewards(self.run, step, rewards), metrics)

    def rewards(self, step: int) -> list[Reward]:
        """Scores, aligned with the trajectories."""
        held = self._memory.get(("reward", step))
        return held if held is not None else read_rewards(self.run, step)

    def teacher(self, step: int, batch: TrainBatch) -> TeacherScores | None:
        """What the teachers said of the rows of `batch`; None when they were not asked yet."""
        return read_teacher(self.run, step, batch)

    def save_teacher(self, step: int, batch: TrainBatch, scores: TeacherScores) -> None:
        """Publish it: before the batch, so that a crash between them asks nobody again."""
        write_teacher(self.run, step, batch, scores)

    def save_batch(self, step: int, batch: TrainBatch, metrics: dict[str, float], durable: bool = False) -> StageOutput:
        """Publish the training batch. `durable`: a later step computes from these numbers (the KL coefficient does)."""
        self._write_note("advantage", step, metrics, durable)
        return self._keep("advantage", step, batch, write_batch(self.run, step, batch), metrics)

    def batch(self, step: int) -> TrainBatch:
        """The whole batch of the step."""
        held = self._memory.get(("advantage", step))
        return held if held is not None else read_batch(self.run, step)

    def save_record(self, record: StepRecord, metrics: dict[str, float]) -> StageOutput:
        """Publish the step's numbers, then its record: from here on the step is done."""
        self._write_note("update", record.step, metrics)
        write_metrics(self.run, record.step, metrics)
        written = write_step_record(self.run, record)
        return self._keep("update", record.step, record, written, metrics, record.checkpoint)

    def metrics(
        self, step: int, stages: Sequence[StageName] = ("rollout", "reward", "advantage", "update")
    ) -> dict[str, float]:
        """Numbers of the named stages of a step, those that are finished."""
        merged: dict[str, float] = {}
        for stage in stages:
            if (done := self.finished(stage, step)) is not None:
                merged.update(done.metrics)
        return merged

    def validation(self, step: int) -> dict[str, float] | None:
        """Metrics of the validation after `step`, None when there was none."""
        path = f"{RunDir.step_dir(step)}/{VALIDATION}"
        return json.loads(self.run.read(path)) if self.run.exists(path) else None

    def save_validation(self, step: int, metrics: dict[str, float]) -> None:
        """Publish them."""
        self.run.publish_bytes(f"{RunDir.step_dir(step)}/{VALIDATION}", json.dumps(metrics, indent=1).encode())

    def _keep(
        self,
        stage: StageName,
        step: int,
        value: Any,
        written: Published,
        metrics: dict[str, float],
        checkpoint: str = "",
    ) -> StageOutput:
        output = StageOutput(stage, step, self.run.url(written.path), written.sha256, metrics, checkpoint)
        self._memory = {key: held for key, held in self._memory.items() if key[1] == step} | {(stage, step): value}
        self._outputs = {key: out for key, out in self._outputs.items() if key[1] >= step - 1} | {(stage, step): output}
        return output

    def _write_note(self, stage: StageName, step: int, metrics: dict[str, float], durable: bool = False) -> None:
        """The numbers of a stage, before its file: whoever finds the file finds the note. Unless `durable`, a crash of
        the machine, not of the process, may lose it, and then these numbers and nothing else."""
        path, data = self._note_path(stage, step), json.dumps(metrics).encode()
        if durable or self.run.local is None:
            self.run.publish_bytes(path, data)
            return
        target = self.run.local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".tmp")
        draft.write_bytes(data)
        draft.replace(target)

    def _read_note(self, stage: StageName, step: int) -> dict[str, float]:
        path = self._note_path(stage, step)
        data = self.run.read(path) if self.run.exists(path) else b""
        return json.loads(data) if data else {}

    def _note_path(self, stage: StageName, step: int) -> str:
        return f"{RunDir.step_dir(step)}/.{stage}.json"

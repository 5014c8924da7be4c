"""Teachers in a step: who is asked what, and what is made of the answers.

Invariant: what the teachers said is on disk before anything is computed from it, so a step that is taken up again asks
nobody; and it travels in the batch, so replaying an update needs no teacher at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl_core.algorithms.distillation import distillation_advantages
from verl_core.batch import TrainBatch
from verl_core.config.schema import DistillationConfig, RunConfig
from verl_core.config.teachers import taught_by, teachers_of
from verl_core.data.teacher_model import check_teacher, model_settings, vocabulary_size
from verl_core.data.tokenizer import vocabulary_of
from verl_core.engine.distillation_term import TEACHER, TOPK, TOPK_IDS
from verl_core.errors import ConfigError, TeacherError
from verl_core.record.teacher_file import TeacherScores
from verl_core.rollout.teachers.group import Asked
from verl_core.rollout.teachers.interface import TeacherRequest, TeacherRow
from verl_core.trainer.session import Session
from verl_core.trajectory import Trajectory

EXACT_IDS = 2**24  # a float32 column holds whole numbers up to here


@dataclass(frozen=True)
class Question:
    """To the teachers, about one step; `known` are answers of an earlier attempt."""

    step: int
    began: float
    asked: Asked | None = None
    known: TeacherScores | None = None


def check_teachers(config: RunConfig, sources: Sequence[str]) -> None:
    """Every data source has a teacher, and every teacher reads the policy's tokens. Nothing without distillation.

    Raises:
        ConfigError: a data source has no teacher, or a teacher has nothing to teach.
        ModelError: see `check_teacher`.
    """
    teachers, policy = teachers_of(config), config.actor_rollout_ref.model.path
    if not config.distillation.enabled:
        return
    busy = {source: taught_by(teachers, source) for source in sources}
    if alone := [source for source, teacher in busy.items() if teacher is None]:
        raise ConfigError(
            f"distillation.teacher_models: nobody teaches the data source {alone[0]!r}. Give a teacher that key, or "
            "leave the key of one out, which then teaches all others"
        )
    loss = config.distillation.distillation_loss
    topk = loss.topk if loss.reads_topk else 0
    for teacher in teachers:
        if teacher not in busy.values():
            raise ConfigError(
                f"distillation.teacher_models.{teacher.name}: no row has a data source that it teaches (the data has "
                f"{', '.join(sorted(sources))}); delete it, or correct its key"
            )
        check_teacher(teacher.name, teacher.path, policy, topk, config.max_model_len)
    if loss.reads_topk and policy_vocabulary(policy) > EXACT_IDS:
        raise ConfigError(f"distillation: token ids above {EXACT_IDS} cannot be kept exactly")


def policy_vocabulary(folder: str) -> int:
    """Tokens that the policy can give a probability to."""
    said = None if folder.endswith(".gguf") else vocabulary_size(model_settings(folder, "actor_rollout_ref.model.path"))
    return len(vocabulary_of(folder)) if said is None else said


def ask_teachers(session: Session, step: int, batch: TrainBatch, trajectories: Sequence[Trajectory]) -> Question | None:
    """Send every row that is trained on to its teacher, unless an earlier attempt has the answers; returns at once.
    None without distillation."""
    if not session.config.distillation.enabled or session.teachers is None:
        return None
    began = time.perf_counter()
    if (known := session.files.teacher(step, batch)) is not None:
        return Question(step, began, known=known)
    config = session.config
    teachers, loss = teachers_of(config), config.distillation.distillation_loss
    sources = {row.key: row.data_source for row in trajectories}
    requests: dict[str, list[TeacherRequest]] = {}
    for row in trained_rows(batch):
        teacher = taught_by(teachers, sources[batch.keys[row]])
        if teacher is None:
            raise ConfigError(f"nobody teaches the data source {sources[batch.keys[row]]!r}")
        requests.setdefault(teacher.name, []).append(request_of(batch, row))
    vocabulary = policy_vocabulary(config.actor_rollout_ref.model.path)
    topk = loss.topk if loss.reads_topk else 0
    return Question(step, began, session.teachers.ask(requests, topk, vocabulary, f"step {step}"))


def trained_rows(batch: TrainBatch) -> list[int]:
    """Rows with a trainable token."""
    found: list[int] = np.flatnonzero(
        np.bincount(batch.row_index[batch.response_mask], minlength=len(batch)) > 0
    ).tolist()
    return found


def request_of(batch: TrainBatch, row: int) -> TeacherRequest:
    """A row as a teacher reads it: the very ids."""
    prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
    response = batch.response_ids[batch.response_offsets[row] : batch.response_offsets[row + 1]]
    return TeacherRequest(batch.keys[row], np.concatenate([prompt, response]), len(prompt))


def with_teachers(session: Session, batch: TrainBatch, question: Question) -> tuple[TrainBatch, dict[str, float]]:
    """The batch with what the teachers say of it, which is on disk then; needs column `old_log_probs`.

    Raises:
        TeacherError, DeadlineExceeded: see `Teachers.collect`.
    """
    started = time.perf_counter()
    scores = question.known
    if scores is None:
        if session.teachers is None or question.asked is None:
            raise TeacherError(f"step {question.step}: no teacher was asked")
        rows = session.teachers.collect(question.asked, session.check)
        scores = scores_of(batch, rows, question.asked.topk)
        session.files.save_teacher(question.step, batch, scores)
    batch = batch.with_column(TEACHER, scores.log_probs)
    if scores.topk_ids.shape[1]:
        batch = batch.with_column(TOPK_IDS, scores.topk_ids.astype(np.float32))
        batch = batch.with_column(TOPK, scores.topk_log_probs)
    now = time.perf_counter()
    return batch, {
        **distance_metrics(batch),
        "timing_s/teacher": now - started,
        "distillation/answered_s": now - question.began,
    }


def scores_of(batch: TrainBatch, rows: dict[str, TeacherRow], topk: int) -> TeacherScores:
    """The teachers' answers as columns of the batch.

    Args:
        rows: by key, of `trained_rows`.

    Raises:
        TeacherError: an answer is of another length, or not a number.
    """
    count = len(batch.response_ids)
    scores = TeacherScores(
        np.full(count, np.nan, dtype=np.float32),
        np.zeros((count, topk), dtype=np.int32),
        np.full((count, topk), -np.inf, dtype=np.float32),
    )
    for row in trained_rows(batch):
        cells = slice(int(batch.response_offsets[row]), int(batch.response_offsets[row + 1]))
        answer, mask = rows[batch.keys[row]], batch.response_mask[cells]
        if len(answer.log_probs) != len(mask) or not np.isfinite(answer.log_probs[mask]).all():
            raise TeacherError(
                f"{batch.keys[row]}: a teacher gave {len(answer.log_probs)} log-probs of {len(mask)} tokens, or some "
                "that are not finite: its weights overflow, or it gives a sampled token no probability. Take a wider "
                "dtype"
            )
        scores.log_probs[cells] = answer.log_probs
        scores.topk_ids[cells], scores.topk_log_probs[cells] = answer.topk_ids, answer.topk_log_probs
    return scores


def distance_metrics(batch: TrainBatch) -> dict[str, float]:
    """Nats per trainable token: `reverse_kl` the mean of log pi_old - log teacher, an estimate of KL(pi_old, teacher),
    `abs_distance` the mean of its size; `teacher_mass` the mean mass of the candidates, where there are any."""
    mask = batch.response_mask
    if not mask.any():
        return {}
    distance = batch.columns["old_log_probs"][mask] - batch.columns[TEACHER][mask]
    told = {"reverse_kl": float(distance.mean()), "abs_distance": float(np.abs(distance).mean())}
    if TOPK in batch.columns:
        told["teacher_mass"] = float(np.exp(batch.columns[TOPK][mask]).sum(axis=1).mean())
    return {f"distillation/{name}": value for name, value in told.items()}


def with_distances(batch: TrainBatch, config: DistillationConfig) -> TrainBatch:
    """The batch with the advantages that the policy is trained on: those of the rewards where these are used, less the
    distance to the teacher where that is a reward. Unchanged without distillation."""
    if not config.enabled:
        return batch
    loss = config.distillation_loss
    if not loss.use_task_rewards:
        nothing = np.zeros(len(batch.response_ids), dtype=np.float32)
        batch = batch.with_column("advantages", nothing).with_column("returns", nothing)
    if not loss.use_policy_gradient:
        return batch
    weight = loss.distillation_loss_coef if loss.use_task_rewards else 1.0
    mask = batch.padded_mask()
    found = distillation_advantages(
        loss.loss_mode, batch.padded("old_log_probs"), batch.padded(TEACHER), mask, loss.loss_max_clamp
    )
    total = torch.where(mask, batch.padded("advantages") + weight * found, 0.0)
    return batch.with_column("advantages", batch.flat(total))

"""Validation: every validation prompt once, under the weights of a step. Invariant: a failed or unscored session
counts as 0."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

from verl_core.reward.interface import Scorer
from verl_core.reward.model_scorer import ModelScorer
from verl_core.trainer.session import Session
from verl_core.trainer.stages.reward import samples_of
from verl_core.trajectory import Prompt, Reward, Trajectory
from verl_core.validation.metrics import validation_metrics


def judge_of(session: Session) -> Scorer:
    """Who scores validation."""
    scorer = session.scorer
    return scorer.for_validation if isinstance(scorer, ModelScorer) else scorer


def validate(session: Session, step: int, scoring: AbstractContextManager[None] | None = None) -> dict[str, float]:
    """Sample all validation prompts, in batches of data.val_batch_size, score them, and return `val-core/` and
    `val-aux/` metrics; an empty validation set gives an empty dict. A validation that was done before is read from
    the step's folder.

    Args:
        scoring: what is done around the scoring: a reward model may have to be given the servers' devices.

    Raises:
        DeadlineExceeded, RewardError: as in the rollout and reward stages.
    """
    if (known := session.files.validation(step)) is not None:
        return known
    started = time.perf_counter()
    asked: list[Prompt] = []
    rows: list[Trajectory] = []
    prompts = session.validation_prompts(step)
    size = session.config.data.val_batch_size or max(1, len(prompts))
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        session.validation_buffer.submit(batch)
        groups = session.validation_buffer.sample(len(batch), step)
        settled = {group.prompt.base_uid: group.prompt for group in groups}
        asked += [settled.get(prompt.base_uid, prompt) for prompt in batch]
        rows += [row for group in groups for row in group.trajectories]
        session.validation_buffer.clear(groups)
    if not asked:
        return {}
    with scoring or nullcontext():
        rewards = judge_of(session).score(samples_of(session, rows, validation=True))
    metrics = validation_metrics(asked, rows, _by_key(rewards))
    metrics["timing_s/testing"] = time.perf_counter() - started
    session.files.save_validation(step, metrics)
    return metrics


def _by_key(rewards: list[Reward]) -> dict[str, Reward]:
    return {reward.key: reward for reward in rewards}

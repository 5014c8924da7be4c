"""Stage 3. Invariant: old log-probs come from one frozen policy, and values from one frozen critic: those that the
step's update starts from."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import torch

from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs
from verl_core.algorithms.correction import WEIGHTS, correct
from verl_core.algorithms.correction.diagnostics import effect, mismatch
from verl_core.algorithms.kl import kl_penalty
from verl_core.algorithms.kl_control import KLController
from verl_core.algorithms.reward_kl import mean_kl, outcome_rewards, penalised_rewards
from verl_core.batch import TrainBatch
from verl_core.config.schema import AlgorithmConfig
from verl_core.errors import RewardError
from verl_core.trainer.greedy import greedy_rewards, sampled_rows
from verl_core.trainer.metrics import batch_metrics
from verl_core.trainer.session import Session
from verl_core.trainer.stage import StageOutput
from verl_core.trainer.teachers import ask_teachers, with_distances, with_teachers
from verl_core.trajectory import Bool, Reward, Trajectory

VALUES = "values"
SQUARES = "sum_pi_squared"
KL_COEF = "actor/reward_kl_penalty_coeff"


def advantage(session: Session, step: int) -> StageOutput:
    """Old and reference log-probs, values, token rewards, advantages; persists the training batch."""
    scored = session.files.rewards(step)
    trajectories, greedy = session.files.trajectories(step), session.config.greedy_session
    batch = assemble(*sampled_rows(trajectories, scored, greedy))
    baseline = greedy_rewards(batch, trajectories, scored, greedy)
    asked = ask_teachers(session, step, batch, trajectories)
    batch, metrics = _with_models(session, batch)
    if asked is not None:
        batch, told = with_teachers(session, batch, asked)
        metrics |= told
    started = time.perf_counter()
    algorithm = session.config.algorithm
    if algorithm.use_kl_in_reward:
        batch, kl_metrics = penalised(batch, algorithm, session.kl_control(step))
        metrics |= kl_metrics
    else:
        rewards = outcome_rewards(torch.from_numpy(batch.scores), batch.padded_mask())
        batch = batch.with_column("token_rewards", batch.flat(rewards))
    parts = reward_parts(batch, scored, algorithm.gdpo_reward_keys)
    sampled = batch.response_mask
    if not algorithm.rollout_correction.effective.bypass_mode:
        batch, correction_metrics = corrected(batch, algorithm)
        metrics |= correction_metrics
    if session.config.uses_task_rewards:
        batch = with_advantages(batch, algorithm, parts, sampled, baseline)
    batch = with_distances(batch, session.config.distillation)
    metrics |= batch_metrics(batch, sampled) | {"timing_s/adv": time.perf_counter() - started}
    return session.files.save_batch(step, batch, metrics, durable=algorithm.use_kl_in_reward)


def assemble(trajectories: list[Trajectory], rewards: list[Reward]) -> TrainBatch:
    """The batch of a step. The score of a session is that of its last output; the earlier ones get 0 and share in its
    advantage. Where the last output's reward was quarantined, all rows of the session stay with an all-False mask: they
    are not trained on and do not enter their group's statistics."""
    by_key = {reward.key: reward for reward in rewards}
    batch = TrainBatch.from_trajectories(trajectories, [by_key[row.key].score for row in trajectories])
    last = batch.last_output
    batch.scores = np.where(last == np.arange(len(batch)), batch.scores, 0.0).astype(np.float32)
    scored = np.asarray([not by_key[batch.keys[row]].quarantined for row in last])
    batch.response_mask = batch.response_mask & scored[batch.row_index]
    return batch


def reward_parts(batch: TrainBatch, rewards: list[Reward], keys: list[str]) -> torch.Tensor | None:
    """float32 [B, K]: the named parts of every row's reward; 0 on rows that are not trained on. None without keys.

    Raises:
        RewardError: a row to train on lacks a part, or it is not a finite number.
    """
    if not keys:
        return None
    by_key = {reward.key: reward.components for reward in rewards}
    trained = np.bincount(batch.row_index, weights=batch.response_mask, minlength=len(batch)) > 0
    parts = torch.zeros(len(batch), len(keys))
    for row in np.flatnonzero(trained & (batch.last_output == np.arange(len(batch)))):
        for place, name in enumerate(keys):
            part = by_key[batch.keys[row]].get(name)
            if not isinstance(part, int | float) or not math.isfinite(part):
                given = ", ".join(sorted(by_key[batch.keys[row]])) or "nothing"
                raise RewardError(
                    f"algorithm.gdpo_reward_keys names {name!r}, and the reward of {batch.keys[row]} has {part!r} "
                    f"there (its parts: {given}); the reward function must return a finite number for it besides"
                )
            parts[row, place] = float(part)
    return parts


def penalised(
    batch: TrainBatch, algorithm: AlgorithmConfig, control: KLController
) -> tuple[TrainBatch, dict[str, float]]:
    """Token rewards with the KL to the reference paid at every token; moves `control`, whose new value the metrics
    carry to the next step."""
    mask = batch.padded_mask()
    kl = kl_penalty(algorithm.kl_penalty, batch.padded("old_log_probs"), batch.padded("ref_log_probs"), mask)
    rewards = penalised_rewards(outcome_rewards(torch.from_numpy(batch.scores), mask), kl, mask, control.value)
    current = mean_kl(kl, mask)
    metrics = {"actor/reward_kl_penalty": current, KL_COEF: control.value}
    control.update(current, rows=int(mask.any(dim=1).sum()))
    metrics[f"{KL_COEF}_next"] = control.value
    return batch.with_column("token_rewards", batch.flat(rewards)), metrics


def corrected(batch: TrainBatch, algorithm: AlgorithmConfig) -> tuple[TrainBatch, dict[str, float]]:
    """The batch after the off-policy correction of the frozen old policy: rejected tokens leave the response mask, and
    column `rollout_is_weights` is there when weights are configured. With the metrics of what was far and what was done
    about it."""
    mask, rollout, old = batch.padded_mask(), batch.padded("rollout_log_probs"), batch.padded("old_log_probs")
    metrics = mismatch(old, rollout, mask)
    config = algorithm.rollout_correction.effective
    if config.rollout_is is None and config.rollout_rs is None:
        return batch, metrics
    result = correct(old - rollout, mask, config)
    batch = replace(batch, response_mask=batch.flat(result.keep.float()) > 0)
    if result.weights is not None:
        batch = batch.with_column(WEIGHTS, batch.flat(result.weights))
    return batch, metrics | effect(result, mask)


def with_advantages(
    batch: TrainBatch,
    algorithm: AlgorithmConfig,
    parts: torch.Tensor | None = None,
    sampled: Bool | None = None,
    baseline: torch.Tensor | None = None,
) -> TrainBatch:
    """The batch with columns `advantages` and `returns`, by the configured estimator.

    Args:
        parts: float32 [B, K], from `reward_parts`.
        sampled: bool flat, the response mask before any rejection; None = nothing was rejected.
        baseline: float32 [B], score of the greedy response to each row's prompt, where the estimator wants it.
    """
    own = batch.response_mask if sampled is None else sampled
    inputs = AdvantageInputs(
        token_rewards=batch.padded("token_rewards"),
        mask=batch.padded_mask(),
        group_index=torch.from_numpy(batch.group_index),
        norm_by_std=algorithm.norm_adv_by_std_in_grpo,
        sampled=batch.padded(own.astype(np.float32)).bool(),
        baseline_rows=algorithm.rollout_correction.baseline_rows,
        session_index=torch.from_numpy(batch.session_index),
        output_index=torch.from_numpy(batch.output_index),
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        reward_parts=parts,
        part_weights=tuple(algorithm.gdpo_reward_weights) or None,
        values=batch.padded(VALUES) if VALUES in batch.columns else None,
        is_weights=batch.padded(WEIGHTS) if WEIGHTS in batch.columns else None,
        greedy_rewards=baseline,
        old_log_probs=batch.padded("old_log_probs") if SQUARES in batch.columns else None,
        sum_pi_squared=batch.padded(SQUARES) if SQUARES in batch.columns else None,
    )
    result = ADVANTAGES.get(algorithm.adv_estimator)(inputs)
    batch = batch.with_column("advantages", batch.flat(result.advantages))
    return batch.with_column("returns", batch.flat(result.returns))


def _with_models(session: Session, batch: TrainBatch) -> tuple[TrainBatch, dict[str, float]]:
    metrics: dict[str, float] = {}
    if session.config.algorithm.rollout_correction.effective.bypass_mode:
        batch = batch.with_column("old_log_probs", batch.columns["rollout_log_probs"])
    else:
        with session.training("old_log_prob", metrics):
            old = session.policy.old_log_probs(batch)
        batch = batch.with_column("old_log_probs", old.log_probs)
        if old.entropy is not None:
            batch = batch.with_column("entropy", old.entropy)
        if old.squares is not None:
            batch = batch.with_column(SQUARES, old.squares)
    if session.config.needs_reference:
        with session.training("ref", metrics):
            reference = session.policy.ref_log_probs(batch)
        batch = batch.with_column("ref_log_probs", reference.log_probs)
    if session.critic is not None:
        with session.training("values", metrics):
            values = session.critic.values(batch)
        batch = batch.with_column(VALUES, values)
    return batch, metrics

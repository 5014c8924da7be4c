"""Numbers about a batch, named as verl names them where they mean the same. Invariant: only trained cells count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from verl_core.algorithms.value_loss import explained_variance
from verl_core.batch import TrainBatch
from verl_core.rollout.usage import ServerUsage
from verl_core.trainer.turn_metrics import turn_metrics
from verl_core.trajectory import Bool, Reward, Trajectory
from verl_core.transfer.constant_groups import KIND
from verl_core.transfer.drops import DropSummary

DROPPED_SAMPLES, DROPPED_UNSCORED = "filter_groups/dropped_samples", "filter_groups/dropped_unscored"


def spread(name: str, values: NDArray[np.float32] | NDArray[np.int64]) -> dict[str, float]:
    """`{name}/mean`, `/max`, `/min`; nothing when there are no values."""
    if values.size == 0:
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def rollout_metrics(trajectories: Sequence[Trajectory], max_response: int, seconds: float) -> dict[str, float]:
    """Lengths, tokens sampled per second of the generating stage, and turns and calls where there are tools. A response
    is all that follows the prompt, answers of tools included.

    response_length/clip_ratio is the share of responses that were cut by `max_response`.
    """
    responses = np.asarray([len(row.response_ids) for row in trajectories], dtype=np.int64)
    prompts = np.asarray([len(row.prompt_ids) for row in trajectories], dtype=np.int64)
    sampled = float(sum(int(row.response_mask.sum()) for row in trajectories))
    return {
        **spread("response_length", responses),
        **spread("prompt_length", prompts),
        "response_length/clip_ratio": float((responses >= max_response).mean()),
        "response/aborted_ratio": float((responses == 0).mean()),
        "perf/rollout_tokens_per_s": sampled / max(seconds, 1e-9),
        **turn_metrics(trajectories),
    }


def staleness_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """How many publications lie between a trajectory's oldest token and the weights that train on it, and the share of
    tokens that are older than these.

    Args:
        version: of the weights that train.
    """
    ages = np.asarray([version - row.min_version for row in trajectories], dtype=np.int64)
    segments = [segment for row in trajectories for segment in row.segments]
    tokens = max(1, sum(segment.length for segment in segments))
    old = sum(segment.length for segment in segments if segment.weight_version < version)
    cut = sum(len(row.segments) > 1 for row in trajectories)
    return {
        **spread("training/staleness", ages),
        **{f"training/staleness_rows/{age}": float((ages == age).sum()) for age in np.unique(ages).tolist()},
        "training/off_policy_token_share": old / tokens,
        "training/resumed_share": cut / max(1, len(trajectories)),
    }


def usage_metrics(used: Sequence[ServerUsage]) -> dict[str, float]:
    """What the servers did since the step before, as a mean over them (seconds) or in all."""
    if not used:
        return {}
    clock, busy = (float(np.mean([getattr(one, name) for one in used])) for name in ("clock_s", "busy_s"))
    counts = ("tokens", "finished", "aborted", "resumed", "tokens_discarded")
    return {
        "rollout/clock_s": clock,
        "rollout/busy_s": busy,
        "rollout/busy_share": busy / clock if clock > 0 else 0.0,
        **{f"rollout/{name}": float(sum(getattr(one, name) for one in used)) for name in counts},
    }


def drop_metrics(drops: DropSummary, kept: int = 0, is_filtered: bool = False) -> dict[str, float]:
    """Groups dropped since the step before; who they were, when there are any. With a group filter also its share of
    those it judged, which are the `kept` ones and its own; and how many samples were scored in vain, or not at all, for
    the error budget."""
    told = drops.metrics() if drops.groups else {"buffer/dropped": 0.0}
    if not is_filtered:
        return told
    rejected = drops.by_reason.get(KIND, 0)
    return told | {
        "filter_groups/rejected": float(rejected),
        "filter_groups/rejected_share": rejected / max(1, rejected + kept),
        DROPPED_SAMPLES: float(drops.samples),
        DROPPED_UNSCORED: float(drops.unscored),
    }


def reward_metrics(rewards: Sequence[Reward]) -> dict[str, float]:
    """`critic/score/*` over the rows that were scored, and `reward/<part>/mean` over those that have the part as a
    number; quarantined ones are counted apart."""
    scored = [reward for reward in rewards if not reward.quarantined]
    parts: dict[str, list[float]] = {}
    for reward in scored:
        for name, value in reward.components.items():
            if isinstance(value, int | float) and np.isfinite(value):
                parts.setdefault(name, []).append(float(value))
    return {
        **spread("critic/score", np.asarray([reward.score for reward in scored], dtype=np.float32)),
        **{f"reward/{name}/mean": sum(values) / len(values) for name, values in sorted(parts.items())},
        "reward/quarantined": float(len(rewards) - len(scored)),
    }


def batch_metrics(batch: TrainBatch, sampled: Bool | None = None) -> dict[str, float]:
    """Rewards after KL per session, advantages, returns, and how far the trainer's probabilities are from the engine's
    (not in bypass mode, where nothing was compared).

    Args:
        sampled: bool flat, the response mask before any rejection; rewards of rejected tokens count.
    """
    mask, sessions = batch.response_mask, batch.session_index[batch.row_index]
    own = mask if sampled is None else sampled
    sums = np.bincount(sessions, weights=np.where(own, batch.columns["token_rewards"], 0.0))
    trained = np.bincount(sessions, weights=mask) > 0
    told = {
        **spread("critic/rewards", sums[trained].astype(np.float32)),
        **spread("critic/advantages", batch.columns["advantages"][mask]),
        **spread("critic/returns", batch.columns["returns"][mask]),
    }
    if "values" in batch.columns:
        told |= _value_metrics(batch)
    if "entropy" not in batch.columns:
        return told
    drift = np.abs(np.exp(batch.columns["old_log_probs"][mask]) - np.exp(batch.columns["rollout_log_probs"][mask]))
    log_drift = np.abs(batch.columns["old_log_probs"][mask] - batch.columns["rollout_log_probs"][mask])
    return told | {
        "training/rollout_probs_diff_max": float(drift.max(initial=0.0)),
        "training/rollout_probs_diff_mean": float(drift.mean()) if drift.size else 0.0,
        "training/rollout_log_probs_diff_max": float(log_drift.max(initial=0.0)),
        "actor/entropy": float(batch.columns["entropy"][mask].mean()) if mask.any() else 0.0,
    }


def _value_metrics(batch: TrainBatch) -> dict[str, float]:
    """Old values, and how much of the returns they knew; that is left out where returns do not vary."""
    values, returns, mask = batch.columns["values"], batch.columns["returns"], batch.response_mask
    known = explained_variance(torch.from_numpy(values), torch.from_numpy(returns), torch.from_numpy(mask))
    told = spread("critic/values", values[mask])
    return told if known is None else told | {"critic/vf_explained_var": known}

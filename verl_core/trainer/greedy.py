"""The greedy session of a group, whose score is the baseline of its siblings (remax).

Invariant: it is scored like any other and never trained on; where it has no score, its group has no baseline and is
not trained on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from verl_core.batch import TrainBatch
from verl_core.trajectory import Reward, Trajectory, last_outputs


def sampled_rows(
    trajectories: Sequence[Trajectory], rewards: Sequence[Reward], greedy_session: int | None
) -> tuple[list[Trajectory], list[Reward]]:
    """The trajectories that were sampled, and all rewards; those of a group without a baseline become quarantined.

    Args:
        greedy_session: `RunConfig.greedy_session`; None = every session was sampled.
    """
    if greedy_session is None:
        return list(trajectories), list(rewards)
    lost = without_baseline(trajectories, rewards, greedy_session)
    uid_of = {row.key: row.uid for row in trajectories}
    judged = [
        replace(reward, score=0.0, status="raised", reason=lost[uid_of[reward.key]])
        if uid_of.get(reward.key) in lost and not reward.quarantined
        else reward
        for reward in rewards
    ]
    return [row for row in trajectories if row.session != greedy_session], judged


def greedy_rewards(
    batch: TrainBatch, trajectories: Sequence[Trajectory], rewards: Sequence[Reward], greedy_session: int | None
) -> torch.Tensor | None:
    """float32 [B]: the score of the greedy response to each row's prompt, 0 where it has none; None in a run without.

    Args:
        trajectories, rewards: of the whole step.
    """
    if greedy_session is None:
        return None
    by_key = {reward.key: reward for reward in rewards}
    last = {uid: by_key[row.key] for (uid, n), row in last_outputs(trajectories).items() if n == greedy_session}
    return torch.tensor([last[uid].score for uid in batch.uids], dtype=torch.float32)


def without_baseline(
    trajectories: Sequence[Trajectory], rewards: Sequence[Reward], greedy_session: int | None
) -> dict[str, str]:
    """Uid of each group whose greedy response could not be scored, with the reason."""
    if greedy_session is None:
        return {}
    failed = {reward.key: reward.reason for reward in rewards if reward.quarantined}
    last = [row for (_, session), row in last_outputs(trajectories).items() if session == greedy_session]
    return {row.uid: f"no baseline: {failed[row.key]}" for row in last if row.key in failed}

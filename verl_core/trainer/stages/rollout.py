"""Stage 1. Invariant: a group that settled is on disk before the stage waits for the next one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from verl_core.errors import RolloutError
from verl_core.reward.budget import Beside, check_budget
from verl_core.trainer.metrics import drop_metrics, rollout_metrics, staleness_metrics, usage_metrics
from verl_core.trainer.session import Session
from verl_core.trainer.stage import StageOutput
from verl_core.trajectory import Trajectory


def serve(session: Session, step: int) -> None:
    """Serve prompts as far ahead as the mode says. Groups that an earlier attempt already finished are taken from the
    step's spool."""
    session.began = time.perf_counter()
    session.feed.take_over(step, session.files.spool(step).read)
    session.feed.top_up(step, session.buffer)


def rollout(session: Session, step: int) -> StageOutput:
    """Wait for the step's groups, and persist their trajectories.

    Raises:
        DeadlineExceeded: nothing settled for trainer.v1.buffer.stall_timeout_s.
        RolloutError: every group of the step failed for good.
        RewardError: samples of groups that a filter dropped could not be scored, more than reward.error_budget allows.
    """
    spool = session.files.spool(step)
    groups = session.buffer.sample(session.config.data.train_batch_size, step, on_arrival=spool.append)
    seconds = time.perf_counter() - session.began
    trajectories = sorted((row for group in groups for row in group.trajectories), key=lambda row: row.order)
    if not trajectories:
        raise RolloutError(
            f"step {step}: no group finished; see the drops of this step in journal.jsonl for the reasons"
        )
    if session.on_policy:
        _refuse_other_versions(trajectories, step)
    drops, is_filtered = session.buffer.drops(), session.config.algorithm.filter_groups.enable
    # Whatever the reward stage makes of those that are kept. Nothing is saved yet: who takes over scores them anew.
    beside = Beside(drops.samples + len(trajectories), drops.unscored, drops.example)
    check_budget([], session.config.reward.error_budget, beside)
    metrics = {
        "timing_s/gen": seconds,
        "timing_s/wait_weights": session.waited,
        "training/groups": float(len(groups)),
        **rollout_metrics(trajectories, session.config.data.max_response_length, seconds),
        **staleness_metrics(trajectories, step - 1),
        **drop_metrics(drops, len(groups), is_filtered),
        **(ahead_metrics(session) if session.ahead else {}),
    }
    _leave_the_rest(session, step)
    if is_filtered:
        by_key = {reward.key: reward for group in groups for reward in group.rewards}
        session.files.save_scored(step, [by_key[row.key] for row in trajectories])
    output = session.files.save_trajectories(step, trajectories, metrics)
    session.buffer.clear(groups)  # the file is durable: the rows have served their purpose
    return output


def ahead_metrics(session: Session) -> dict[str, float]:
    """Where the rollout stands while the trainer goes on to train: servers' work since the step before, groups under
    way, and groups that wait."""
    ready = session.buffer.ready
    return {
        **usage_metrics(session.used_since()),
        "buffer/ready": float(ready),
        "buffer/in_flight": float(len(session.buffer.unclaimed()) - ready),
    }


def _leave_the_rest(session: Session, step: int) -> None:
    """What arrived and was not chosen belongs to the next step's spool: this one's goes with its trajectories."""
    spool = session.files.spool(step + 1)
    spool.append(session.buffer.arrived_groups())
    spool.close()
    session.feed.close_step(step, session.buffer)


def _refuse_other_versions(trajectories: Sequence[Trajectory], step: int) -> None:
    """On-policy means on-policy: a server that answered with other weights must not go unnoticed."""
    found = sorted({segment.weight_version for row in trajectories for segment in row.segments} - {step - 1})
    if found:
        raise RolloutError(
            f"step {step}: servers answered with weight versions {found} where {step - 1} was published. Their restart "
            "or their weight update went wrong; the trajectories were not used. See the servers' logs, then run again."
        )

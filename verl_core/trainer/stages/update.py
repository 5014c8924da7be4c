"""Stage 4. Invariant: update, checkpoint, publication (a hook of the mode), then the step record. The record is what
makes a step done; the journal's `trained` marks follow it."""

from __future__ import annotations

import time

from verl_core.record.step_record import StepRecord, code_version
from verl_core.trainer.greedy import without_baseline
from verl_core.trainer.session import OVERLAP, Session
from verl_core.trainer.stage import StageOutput
from verl_core.trainer.stages.reward import unscored_groups
from verl_core.trainer.step_files import UpdateDraft
from verl_core.trajectory import Reward, Trajectory


def update(session: Session, step: int) -> UpdateDraft:
    """Train critic and policy on the step's batch and checkpoint when due. Nothing says yet that the step is done."""
    metrics: dict[str, float] = {}
    batch = session.files.batch(step)
    for name, engine in session.trained.items():
        with session.training(f"update_{name}", metrics):
            metrics.update(engine.update(batch, step))
    if session.saves_at(step):
        started = time.perf_counter()
        checkpoint = session.save_checkpoint(step)
        digest = session.policy.weights_sha256()
        metrics["timing_s/save_checkpoint"] = time.perf_counter() - started
        return UpdateDraft(step, metrics, checkpoint, digest)
    return UpdateDraft(step, metrics)


def close_step(session: Session, draft: UpdateDraft) -> StageOutput:
    """Write record and metrics of a step whose weights are published, settle the accounts of its groups, tell the
    loggers."""
    step = draft.step
    trajectories, rewards = session.files.trajectories(step), session.files.rewards(step)
    metrics = {**session.files.metrics(step), **draft.metrics, **session.noted}
    if OVERLAP in metrics:  # of the stages, which each have their own
        parts = (session.files.metrics(step, ("advantage",)), draft.metrics)
        metrics[OVERLAP] = sum(part.get(OVERLAP, 0.0) for part in parts)
    metrics |= session.step_clock(
        step, metrics, sum(len(row.response_ids) + len(row.prompt_ids) for row in trajectories)
    )
    greedy = session.config.greedy_session
    unscored = unscored_groups(trajectories, rewards, greedy) | without_baseline(trajectories, rewards, greedy)
    trained = list(dict.fromkeys(row.uid for row in trajectories if row.uid not in unscored))
    for uid, reason in unscored.items():  # before the record: whoever finds that takes the other groups for trained
        session.journal.record("dropped", [uid], step=step, reason=f"reward: {reason}")
    output = session.files.save_record(_record(session, draft, trajectories, rewards, trained, metrics), metrics)
    session.journal.record("trained", trained, step=step)
    session.sinks.log(step, metrics)
    return output


def _record(
    session: Session,
    draft: UpdateDraft,
    trajectories: list[Trajectory],
    rewards: list[Reward],
    trained: list[str],
    metrics: dict[str, float],
) -> StepRecord:
    step = draft.step
    inputs = [session.files.finished(stage, step) for stage in ("rollout", "reward", "advantage")]
    seconds = metrics["timing_s/step"]
    return StepRecord(
        step=step,
        version_in=step - 1,
        version_out=step,
        inputs={output.path.removeprefix(f"{session.run.root}/"): output.sha256 for output in inputs if output},
        uids=tuple(trained),
        config_hash=session.config_hash,
        code_version=code_version(),
        counts={
            "groups": len({row.uid for row in trajectories}),
            "rows": len(trajectories),
            "tokens": sum(len(row.response_ids) for row in trajectories),
            "quarantined": sum(reward.quarantined for reward in rewards),
        },
        timings={
            name.removeprefix("timing_s/"): value for name, value in metrics.items() if name.startswith("timing_s/")
        },
        device_seconds=seconds * session.config.num_devices,
        weights_sha256=draft.weights_sha256,
        checkpoint=draft.checkpoint,
    )

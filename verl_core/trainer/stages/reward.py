"""Stage 2. Invariant: every trajectory has a score or a named quarantine; a group without any score is dropped, with
reasons."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from verl_core.reward.budget import Beside, check_budget
from verl_core.reward.interface import Sample, SampleTokens
from verl_core.reward.model_scorer import ModelScorer
from verl_core.reward.overlong import with_overlong_penalty
from verl_core.trainer.metrics import DROPPED_SAMPLES, DROPPED_UNSCORED, reward_metrics
from verl_core.trainer.session import Session
from verl_core.trainer.stage import StageOutput
from verl_core.trajectory import Reward, Trajectory, last_outputs
from verl_core.transfer.flight import Group


def reward(session: Session, step: int) -> StageOutput:
    """Score the step's trajectories, unless that was done while they were sampled, and persist the rewards. What failed
    then is scored once more: a process that takes over after the function was mended can go on.

    Raises:
        RewardError: more samples failed than reward.error_budget allows.
    """
    started = time.perf_counter()
    trajectories = session.files.trajectories(step)
    scored = session.files.scored(step) if session.config.algorithm.filter_groups.enable else None
    if scored is None:
        rewards = shaped(session, session.scorer.score(samples_of(session, trajectories)), trajectories)
    else:
        rewards = _failures_again(session, trajectories, scored)
        check_budget(rewards, session.config.reward.error_budget, _dropped(session, step))
    metrics = {**_metrics(session, trajectories, rewards), "timing_s/reward": time.perf_counter() - started}
    return session.files.save_rewards(step, rewards, metrics)


def _dropped(session: Session, step: int) -> Beside:
    """The samples of groups that the step's filter dropped."""
    told = session.files.metrics(step, ("rollout",))
    return Beside(int(told.get(DROPPED_SAMPLES, 0)), int(told.get(DROPPED_UNSCORED, 0)))


def _metrics(session: Session, trajectories: Sequence[Trajectory], rewards: Sequence[Reward]) -> dict[str, float]:
    """Of the sampled responses; a greedy baseline's mean score has a name of its own."""
    greedy = session.config.greedy_session
    pairs = list(zip(trajectories, rewards, strict=True))
    metrics = reward_metrics([reward for row, reward in pairs if row.session != greedy])
    baseline = [reward.score for row, reward in pairs if row.session == greedy and not reward.quarantined]
    return metrics | ({"critic/greedy_score/mean": sum(baseline) / len(baseline)} if baseline else {})


def _failures_again(session: Session, rows: Sequence[Trajectory], rewards: Sequence[Reward]) -> list[Reward]:
    """The rewards of `rows`, in order; those that are quarantined are asked for again."""
    failed = [row for row, reward in zip(rows, rewards, strict=True) if reward.quarantined]
    asked = session.scorer.score_each(samples_of(session, failed)) if failed else []
    again = iter(shaped(session, asked, failed))
    return [next(again) if reward.quarantined else reward for reward in rewards]


def scored_groups(session: Session, groups: Sequence[Group]) -> list[Group]:
    """The groups with their rewards, for a filter that judges them as they arrive. What could not be scored is counted
    by the step that trains on it."""
    rows = [row for group in groups for row in group.trajectories]
    rewards = iter(shaped(session, session.scorer.score_each(samples_of(session, rows)), rows))
    scored = [replace(group, rewards=tuple(next(rewards) for _ in group.trajectories)) for group in groups]
    if session.feed.sampling is not None:
        session.feed.sampling.note(scored)
    return scored


def shaped(session: Session, rewards: Sequence[Reward], trajectories: Sequence[Trajectory]) -> list[Reward]:
    """The rewards with the penalty on over-long responses, where the run has one."""
    config = session.config
    lengths = [len(row.response_ids) for row in trajectories]
    return with_overlong_penalty(rewards, lengths, config.data.max_response_length, config.reward.overlong_buffer)


def samples_of(session: Session, trajectories: Sequence[Trajectory], validation: bool = False) -> list[Sample]:
    """What the reward function sees: the decoded response, special tokens left out, beside the row's truth."""
    texts = session.tokenizer.batch_decode([row.response_ids.tolist() for row in trajectories])
    samples = []
    for row, text in zip(trajectories, texts, strict=True):
        truth, extra = session.truth_of(row.ordinal, validation)
        tokens = _tokens_of(session, row, validation)
        samples.append(Sample(row.key, row.data_source, text, truth, {**extra, **row.extra}, tokens))
    return samples


def _tokens_of(session: Session, row: Trajectory, validation: bool) -> SampleTokens | None:
    """What a reward model reads; None where there is none."""
    if not isinstance(session.scorer, ModelScorer):
        return None
    return SampleTokens(row.prompt_ids, row.response_ids, session.messages_of(row.ordinal, validation))


def unscored_groups(
    trajectories: Sequence[Trajectory], rewards: Sequence[Reward], greedy_session: int | None = None
) -> dict[str, str]:
    """Uid of each group of which nothing is trained on, with the first reason: none of its sampled sessions has a score
    for its last output."""
    failed = {reward.key: reward.reason for reward in rewards if reward.quarantined}
    groups: dict[str, list[str]] = {}
    for (uid, session), row in last_outputs(trajectories).items():
        if session != greedy_session:
            groups.setdefault(uid, []).append(row.key)
    return {uid: failed[keys[0]] for uid, keys in groups.items() if all(key in failed for key in keys)}

"""The two sets of step nodes: plain tasks that attach to the held cluster, or RayJobs with clusters of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks import finish as ends
from tasks import stage_jobs, stages


@dataclass(frozen=True)
class StepTasks:
    """Tasks of a run, in order. `steps` does a chunk of steps in place of the four stages."""

    begin: Callable[..., Any]
    rollout: Callable[..., Any]
    reward: Callable[..., Any]
    advantage: Callable[..., Any]
    update: Callable[..., Any]
    steps: Callable[..., Any]
    finish: Callable[..., Any]


SHARED = StepTasks(
    stages.begin, stages.rollout, stages.reward, stages.advantage, stages.update, stages.steps, ends.finish
)
PER_TASK = StepTasks(
    stage_jobs.begin_job,
    stage_jobs.rollout_job,
    stage_jobs.reward_job,
    stage_jobs.advantage_job,
    stage_jobs.update_job,
    stage_jobs.steps_job,
    ends.finish_job,
)

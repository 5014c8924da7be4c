"""The nodes of a step with ray.mode=per_task: each is a RayJob with a RayCluster of its own.

The same work as in `tasks.stages`. A fresh cluster holds nothing, so every node rebuilds the policy from the newest
checkpoint and the batches after it: use trainer.save_freq=1, or chunks of steps.
"""

from __future__ import annotations

from flytekit import task

from tasks.connect import trainer_of
from tasks.literals import Opened, StageNote, StageResult, stage_result
from tasks.ray_config import SUBMITTER, ray_config
from tasks.ray_job import RayTaskConfig
from tasks.stages import RETRIES
from verl_core.config.schema import RayConfig

CLUSTER = ray_config(RayConfig(), RayTaskConfig)  # `session` puts the configuration's own sizes in its place


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def begin_job(config: dict) -> Opened:
    """Open the run; validate the start policy when the configuration says so."""
    with trainer_of(config, StageNote()) as trainer:
        trainer.begin()
        return Opened(config, StageNote())


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def rollout_job(config: dict, step: int, after: StageNote) -> StageResult:
    """Sample the step's groups; gives the trajectories."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.rollout(step))


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def reward_job(config: dict, step: int, after: StageNote) -> StageResult:
    """Score the step's trajectories; gives the rewards."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.reward(step))


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def advantage_job(config: dict, step: int, after: StageNote) -> StageResult:
    """Log-probs and advantages of the step; gives the training batch."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.advantage(step))


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def update_job(config: dict, step: int, after: StageNote) -> StageResult:
    """Train on the step's batch, publish the weights; gives the step's record."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.update(step))


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES)
def steps_job(config: dict, first: int, last: int, after: StageNote) -> StageResult:
    """Steps `first` to `last`, both included; gives the record of the last."""
    with trainer_of(config, after) as trainer:
        return stage_result([trainer.step(step) for step in range(first, last + 1)][-1])

"""The nodes of a step: rollout, reward, advantage, update; or `steps`, a chunk of steps in one node.

Invariant: the literals name what is durable in the run directory. A node that runs again finds its own output and gives
it back; what it finds missing or behind on the cluster it rebuilds from checkpoint and stored batches.
"""

from __future__ import annotations

from flytekit import task

from tasks.connect import trainer_of
from tasks.literals import Opened, StageNote, StageResult, stage_result
from tasks.ray_config import DRIVER

# For lost pods and lost clusters (`tasks.retry`); what was finished is not done again. How long a node may take is set
# where the graph is made, from the configuration.
RETRIES = 2


@task(requests=DRIVER, retries=RETRIES)
def begin(config: dict) -> Opened:
    """Open the run; validate the start policy when the configuration says so."""
    with trainer_of(config, StageNote()) as trainer:
        trainer.begin()
        return Opened(config, StageNote())


@task(requests=DRIVER, retries=RETRIES)
def rollout(config: dict, step: int, after: StageNote) -> StageResult:
    """Sample the step's groups; gives the trajectories."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.rollout(step))


@task(requests=DRIVER, retries=RETRIES)
def reward(config: dict, step: int, after: StageNote) -> StageResult:
    """Score the step's trajectories; gives the rewards."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.reward(step))


@task(requests=DRIVER, retries=RETRIES)
def advantage(config: dict, step: int, after: StageNote) -> StageResult:
    """Log-probs and advantages of the step; gives the training batch."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.advantage(step))


@task(requests=DRIVER, retries=RETRIES)
def update(config: dict, step: int, after: StageNote) -> StageResult:
    """Train on the step's batch, publish the weights; gives the step's record."""
    with trainer_of(config, after) as trainer:
        return stage_result(trainer.update(step))


@task(requests=DRIVER, retries=RETRIES)
def steps(config: dict, first: int, last: int, after: StageNote) -> StageResult:
    """Steps `first` to `last`, both included; gives the record of the last."""
    with trainer_of(config, after) as trainer:
        return stage_result([trainer.step(step) for step in range(first, last + 1)][-1])

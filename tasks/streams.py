"""The two long nodes of an asynchronous run: rollout_stream generates, train_stream trains, at the same time.

Invariant: the end of either ends both. Each tells the other how it is through `verl_core.record.link`: a failure in its
own words, a killed process by its silence. Neither is tried again alone: the next execution takes the run up.
"""

from __future__ import annotations

from dataclasses import asdict

from flytekit import task

from tasks.connect import connected, opened, run_of
from tasks.finish import Finished, finished
from tasks.literals import RolloutReport
from tasks.ray_config import DRIVER
from tasks.streaming import StreamingConfig
from verl_core.config import from_dict
from verl_core.record.link import Link


@task(task_config=StreamingConfig(), requests=DRIVER)
def rollout_stream(config: dict, meeting: str) -> RolloutReport:
    """Start the rollout side and stand by until training is over."""
    from verl_core.trainer.rollout_side import supervise

    typed = from_dict(config)
    with Link(run_of(typed), meeting, "rollout") as link, connected(typed):
        return RolloutReport(**asdict(supervise(typed, link)))


@task(task_config=StreamingConfig(), requests=DRIVER, enable_deck=True, deck_fields=())
def train_stream(config: dict, meeting: str) -> Finished:
    """Train on what the rollout side generates, then close the run's books."""
    typed = from_dict(config)
    with Link(run_of(typed), meeting, "trainer") as link:
        link.wait(typed.ray.up_timeout_s, "ready")
        with opened(typed, link.check) as trainer:
            trainer.fit()
            return finished(trainer)

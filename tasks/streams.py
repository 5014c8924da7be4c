"""The two long nodes of an asynchronous run: one generates, one trains, at the same time.

With ray.mode=shared they are pods that drive the held cluster; with ray.mode=split each is a RayJob with a cluster of
its own, and what goes from one to the other goes through the store, the rollout side's port and the run directory.

Invariant: the end of either ends both. Each tells the other how it is through `verl_core.record.link`: a failure in its
own words, a killed process by its silence. Neither is tried again alone: the next execution takes the run up.
"""

from __future__ import annotations

from dataclasses import asdict

from flytekit import task

from tasks.connect import connected, opened, run_of
from tasks.finish import Finished, finished
from tasks.literals import RolloutReport
from tasks.ray_config import DRIVER, ray_config
from tasks.streaming import StreamingConfig, StreamingRayConfig
from verl_core.config import from_dict
from verl_core.config.schema import RayConfig
from verl_core.record.link import Link

CLUSTER = ray_config(RayConfig(), StreamingRayConfig)  # `session` puts the configuration's own sizes in its place


@task(task_config=StreamingConfig(), requests=DRIVER)
def rollout_stream(config: dict, meeting: str) -> RolloutReport:
    """Start the rollout side and stand by until training is over."""
    return _generate(config, meeting)


@task(task_config=CLUSTER, requests=DRIVER)
def rollout_stream_job(config: dict, meeting: str) -> RolloutReport:
    """The same as a RayJob of its own."""
    return _generate(config, meeting)


@task(task_config=StreamingConfig(), requests=DRIVER, enable_deck=True, deck_fields=())
def train_stream(config: dict, meeting: str) -> Finished:
    """Train on what the rollout side generates, then close the run's books."""
    return _train(config, meeting)


@task(task_config=CLUSTER, requests=DRIVER, enable_deck=True, deck_fields=())
def train_stream_job(config: dict, meeting: str) -> Finished:
    """The same as a RayJob of its own."""
    return _train(config, meeting)


def _generate(config: dict, meeting: str) -> RolloutReport:
    from verl_core.trainer.rollout_side import supervise

    typed = from_dict(config)
    with Link(run_of(typed), meeting, "rollout") as link, connected(typed):
        return RolloutReport(**asdict(supervise(typed, link)))


def _train(config: dict, meeting: str) -> Finished:
    from verl_core.trainer.away import Away

    typed = from_dict(config)
    with Link(run_of(typed), meeting, "trainer") as link:
        offer = link.wait(typed.ray.up_timeout_s, "ready").offer
        away = Away.from_offer(offer, link.check) if offer else None
        with opened(typed, link.check, away) as trainer:
            trainer.fit()
            return finished(trainer)

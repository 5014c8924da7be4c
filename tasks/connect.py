"""Connecting a node to the run: its Ray cluster, then its trainer.

Locally all nodes share the Ray and the trainer of the one process. In a pod a node attaches to the cluster that
hold_cluster published, or, with ray.mode=per_task, to the cluster of its own RayJob; the run's actors are detached, so
the node finds them warm or rebuilds what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tasks.literals import StageNote
from tasks.place import execution_name, is_local
from tasks.rendezvous import Pulse, Rendezvous
from verl_core.config import RunConfig, from_dict
from verl_core.errors import RecordError, ResourceError
from verl_core.record.rundir import RunDir
from verl_core.trainer.ray_session import start_ray

if TYPE_CHECKING:  # seconds of imports that a graph's compilation and a refused configuration do without
    from verl_core.trainer.ppo import PPOTrainer

ATTEMPTS = 4  # Ray Client's server fails to start in one of four connects on a loaded head
CLUSTER_UP_S = 3600.0  # pods of a GPU cluster wait for nodes and pull images


@contextmanager
def trainer_of(config: dict, after: StageNote) -> Iterator[PPOTrainer]:
    """The run's trainer, connected. While the block runs, the holder of the cluster is told that somebody is at work.

    Args:
        config: a resolved configuration.
        after: what the node before this one finished.

    Raises:
        RecordError: the run directory holds something else than what the node before recorded.
        ResourceError, DeadlineExceeded: the cluster cannot be reached or is not there.
    """
    from verl_core.trainer.open import leave_trainer, open_trainer

    typed, owner = from_dict(config), None if is_local() else execution_name()
    try:
        with connected(typed), open_trainer(typed, owner) as trainer:
            confirm(trainer, after)
            yield trainer
    finally:
        if owner is not None:
            leave_trainer(typed)  # this process ends here; the actors wait for the next node


@contextmanager
def connected(config: RunConfig) -> Iterator[None]:
    """This process drives the run's Ray cluster inside the block; no work locally and in a RayJob of its own."""
    if is_local() or config.ray.mode == "per_task":
        yield
        return
    rendezvous = rendezvous_of(config)
    with Pulse(rendezvous, "driver"):
        attach(config, rendezvous)
        yield


def rendezvous_of(config: RunConfig) -> Rendezvous:
    """Where the nodes of this execution meet."""
    from verl_core.trainer.open import run_root

    return Rendezvous(RunDir(run_root(config)), execution_name())


def attach(config: RunConfig, rendezvous: Rendezvous) -> None:
    """Connect this process to the held cluster.

    Raises:
        ResourceError: all attempts failed; the address is read anew for each, since a retried holder has another one.
        DeadlineExceeded: nobody holds a cluster.
    """
    import ray

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return start_ray(config, rendezvous.address(CLUSTER_UP_S))
        except ResourceError:
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise
            time.sleep(2.0 * attempt)
    return None


def confirm(trainer: PPOTrainer, after: StageNote) -> None:
    """Refuse to go on from a file that is not the one the node before recorded."""
    if not after.sha256:
        return
    found = trainer.session.files.finished(after.stage, after.step)
    if found is None or found.sha256 != after.sha256:
        raise RecordError(
            f"step {after.step}: the {after.stage} node recorded sha256 {after.sha256}, but {trainer.session.run.root} "
            f"holds {found.sha256 if found else 'nothing'}. Another run wrote there: give this one a name of its own "
            "(trainer.experiment_name)."
        )

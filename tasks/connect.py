"""Connecting a node to the run: its Ray cluster, then its trainer.

Locally all nodes share the Ray and the trainer of the one process. In a pod a node attaches to the cluster that
hold_cluster published, or, with ray.mode=per_task, to the cluster of its own RayJob; the run's actors are detached, so
the node finds them warm or rebuilds what is missing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tasks.literals import StageNote
from tasks.place import execution_name, is_local
from tasks.rendezvous import Pulse, Rendezvous
from tasks.retry import retried
from verl_core.config import RunConfig, from_dict
from verl_core.deadline import Deadline
from verl_core.errors import RecordError, ResourceError
from verl_core.record.rundir import RunDir, file_sha256
from verl_core.trainer.ray_session import start_ray

if TYPE_CHECKING:  # seconds of imports that a graph's compilation and a refused configuration do without
    from verl_core.trainer.away import Away
    from verl_core.trainer.ppo import PPOTrainer

_AGAIN_S = 5.0


@contextmanager
def trainer_of(config: dict, after: StageNote) -> Iterator[PPOTrainer]:
    """The run's trainer, connected. While the block runs, the holder of the cluster is told that somebody is at work.

    Args:
        config: a resolved configuration.
        after: what the node before this one finished.

    Raises:
        RecordError: the run directory holds something else than what the node before recorded.
        FlyteRecoverableException: in a pod, the cluster cannot be reached or was lost; see `tasks.retry`.
    """
    with retried(), opened(from_dict(config)) as trainer:
        confirm(trainer, after)
        yield trainer


@contextmanager
def opened(
    config: RunConfig, check: Callable[[], None] = lambda: None, away: Away | None = None
) -> Iterator[PPOTrainer]:
    """The same without a node before, and failures are raised as they are. `check`, `away`: see `open_trainer`."""
    from verl_core.trainer.open import leave_trainer, open_trainer

    owner = None if is_local() else execution_name()
    try:
        with connected(config), open_trainer(config, owner, check, away) as trainer:
            yield trainer
    finally:
        if owner is not None:
            leave_trainer(config)  # this process ends here; the actors wait for the next node


@contextmanager
def connected(config: RunConfig) -> Iterator[None]:
    """This process drives the run's Ray cluster inside the block; no work locally and in a RayJob of its own."""
    if is_local() or config.ray.mode != "shared":
        yield
        return
    rendezvous = rendezvous_of(config)
    with Pulse(rendezvous, "driver"):
        attach(config, rendezvous)
        yield


def rendezvous_of(config: RunConfig) -> Rendezvous:
    """Where the nodes of this execution meet."""
    return Rendezvous(run_of(config), execution_name())


def run_of(config: RunConfig) -> RunDir:
    """The run directory."""
    from verl_core.trainer.ray_session import run_root

    return RunDir(run_root(config))


def attach(config: RunConfig, rendezvous: Rendezvous) -> None:
    """Connect this process to the held cluster, within ray.up_timeout_s.

    The address is read anew before each attempt: a holder that died leaves its own behind, and the one that takes over
    writes another. An address that is right is tried again too: on a loaded head one Ray Client connect in four fails.

    Raises:
        DeadlineExceeded: nobody holds a cluster, or it let nobody in; carries the last refusal.
    """
    import ray

    refusal = "none"
    deadline = Deadline(
        "the held Ray cluster to let this node in",
        config.ray.up_timeout_s,
        lambda: f"{rendezvous.state()}; last refusal: {refusal}",
    )
    while left := deadline.left:
        try:
            return start_ray(config, rendezvous.address(left))
        except ResourceError as error:
            refusal = str(error)
            ray.shutdown()
            time.sleep(min(_AGAIN_S, left))
    raise deadline.expired()


def confirm(trainer: PPOTrainer, after: StageNote) -> None:
    """Refuse to go on from a file whose bytes are not those that the node before recorded.

    Raises:
        RecordError: another run wrote there, or the file is gone or damaged.
    """
    if not after.sha256:
        return
    files, run = trainer.session.files, trainer.session.run
    found = ""
    if files.finished(after.stage, after.step) is not None:
        found = content_sha256(run, files.path(after.stage, after.step))
    if found != after.sha256:
        raise RecordError(
            f"step {after.step}: the {after.stage} node recorded sha256 {after.sha256}, but {run.root} holds "
            f"{found or 'nothing'}. Another run wrote there, or the file was damaged: give this run a name of its own "
            "(trainer.experiment_name)."
        )


def content_sha256(run: RunDir, path: str) -> str:
    """Hex sha256 of the bytes that lie at `path` now, whatever a note beside them says."""
    return file_sha256(run.local / path) if run.local else hashlib.sha256(run.read(path)).hexdigest()

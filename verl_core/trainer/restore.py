"""Bringing the policy, or the critic, to a step. Invariant: weights of step k are checkpoint j <= k plus the stored
batches j+1..k, replayed; no token is sampled and no reward asked for again. A batch holds all that an update reads, old
values and returns too, so each network is brought forward alone, from wherever it stands.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from verl_core.errors import CheckpointError

if TYPE_CHECKING:
    from verl_core.engine.interface import TrainedEngine
    from verl_core.trainer.session import Session

_log = logging.getLogger(__name__)


def bring_to(session: Session, engine: TrainedEngine, step: int) -> None:
    """Rebuild a network's state of the end of `step`.

    Goes on from what the ranks hold when they are merely behind, else from the newest whole checkpoint not after
    `step`, else from what the configuration starts with.

    Raises:
        CheckpointError: a batch in between was never stored, so the step cannot be rebuilt; or the checkpoint is of
            another configuration.
    """
    held = engine.steps_done()
    if not _can_replay(session, held, step) or _has_newer(session, held, step):
        held = _load(session, engine, step)
    if not _can_replay(session, held, step):
        missing = next(k for k in range(held + 1, step + 1) if session.files.finished("advantage", k) is None)
        raise CheckpointError(
            f"cannot rebuild step {step}: the newest whole checkpoint is of step {held}, step {missing} left no batch "
            f"in {session.run.root}. Set trainer.resume_mode=resume_path with a later checkpoint, or start a new run."
        )
    for replayed in range(held + 1, step + 1):
        _log.info("replaying the update of step %d from its stored batch", replayed)
        engine.update(session.files.batch(replayed), replayed)


def _can_replay(session: Session, start: int, step: int) -> bool:
    return start <= step and all(
        session.files.finished("advantage", replayed) is not None for replayed in range(start + 1, step + 1)
    )


def _has_newer(session: Session, held: int, step: int) -> bool:
    """Whether loading a checkpoint saves updates over going on from `held`."""
    return any(held < saved <= step for saved in session.checkpoints.steps())


def _load(session: Session, engine: TrainedEngine, step: int) -> int:
    """Load the best start point not after `step`; returns its step."""
    checkpoint, start = session.checkpoints.newest_whole(at_most=step), session.start_checkpoint
    if checkpoint is None and start is not None and start.step <= step:
        checkpoint = start
    if checkpoint is None:
        engine.reset()
        return 0
    engine.load(str(checkpoint.folder))
    return checkpoint.step

"""Scoring a fixed checkpoint. Invariant: cached by the checkpoint's content and the configuration, never by a path."""

from __future__ import annotations

from flytekit import Cache, task

from tasks.ray_config import SUBMITTER
from tasks.retry import retried
from tasks.stage_jobs import CLUSTER
from tasks.stages import RETRIES
from verl_core.config import from_dict

BY_CONTENT = Cache(version="1", serialize=True, ignored_inputs=("checkpoint",))


@task(task_config=CLUSTER, requests=SUBMITTER, retries=RETRIES, cache=BY_CONTENT)
def score_checkpoint(config: dict, checkpoint: str, content: str) -> dict[str, float]:
    """Validation metrics of a checkpoint folder, or of the start policy when `checkpoint` is empty."""
    from verl_core.trainer.evaluate import evaluate

    with retried():
        return evaluate(from_dict(config), checkpoint)


def content_of(checkpoint: str) -> str:
    """Digest of a checkpoint: that of its manifest, which holds the hash of each of its files.

    Raises:
        CheckpointError: there is no whole checkpoint at this path or URL.
    """
    from verl_core.record.checkpoints import content_digest

    return content_digest(checkpoint) if checkpoint else "start policy"

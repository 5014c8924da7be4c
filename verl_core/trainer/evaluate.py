"""Evaluating a checkpoint: the run's validation under weights that were trained before."""

from __future__ import annotations

from verl_core.config import RunConfig, from_dict, to_dict
from verl_core.trainer.open import close_trainer, open_trainer


def evaluate(config: RunConfig, checkpoint: str) -> dict[str, float]:
    """Validation metrics of a checkpoint folder, or of the start policy when `checkpoint` is empty.

    Works in a run directory of its own, `<experiment_name>-eval-<step>`, so that the run itself is left as it is.

    Raises:
        CheckpointError: the checkpoint is missing or broken.
        DataError: there is no validation set.
    """
    apart = from_dict(to_dict(config))
    apart.trainer.experiment_name += f"-eval-{checkpoint.rstrip('/').rpartition('/')[2] or 'start'}"
    apart.trainer.resume_mode = "resume_path" if checkpoint else "auto"
    apart.trainer.resume_from_path = checkpoint
    try:
        with open_trainer(apart) as trainer:
            step = trainer.session.start_step
            trainer.session.restore(step)
            return trainer.validate(step)
    finally:
        close_trainer(apart)

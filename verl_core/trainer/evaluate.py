"""Evaluating a checkpoint: the run's validation under weights that were trained before.

Invariant: numbers are kept under the digest of the weights they belong to, so those of others are never returned.
"""

from __future__ import annotations

import hashlib

from verl_core.config import RunConfig, from_dict, to_dict
from verl_core.config.schema import GroupConfig, RewardConfig, RewardModelConfig, V1Config
from verl_core.errors import DataError
from verl_core.record.checkpoints import content_digest
from verl_core.trainer.open import close_trainer, open_trainer

_DIGITS = 12  # of the digest, in the name of the folder


def evaluate(config: RunConfig, checkpoint: str) -> dict[str, float]:
    """Validation metrics of a checkpoint folder, or of the start policy when `checkpoint` is empty.

    Works in a run directory of its own, `<experiment_name>-eval-<checkpoint>-<digest>`, so that the run itself is left
    as it is. The same weights again are answered from there.

    Raises:
        CheckpointError: the checkpoint is missing or broken.
        DataError: there is no validation set.
    """
    if not config.data.val_files:
        raise DataError(
            "there is no validation set to evaluate on. Name its files in data.val_files, or with data.prepare give "
            "data.prepare.val_size."
        )
    apart = in_one_cluster(config)
    apart.critic.enable = False  # nobody reads values here
    apart.distillation.enabled = False
    if not apart.reward.reward_model.in_validation:
        without_reward_model(apart.reward)
    apart.trainer.experiment_name += f"-eval-{folder_name(config, checkpoint)}"
    apart.trainer.resume_mode = "resume_path" if checkpoint else "auto"
    apart.trainer.resume_from_path = checkpoint
    try:
        with open_trainer(apart) as trainer:
            step = trainer.session.start_step
            trainer.session.restore(step)
            return trainer.validate(step)
    finally:
        close_trainer(apart)


def without_reward_model(reward: RewardConfig) -> None:
    """Leave out, where it stands, a reward model that does not score validation."""
    reward.reward_model = RewardModelConfig()
    reward.composite = [entry for entry in reward.composite if not entry.get("reward_model")]


def in_one_cluster(config: RunConfig) -> RunConfig:
    """A copy of the settings under which one Ray cluster is enough: an evaluation has no second one to talk to."""
    copy = from_dict(to_dict(config))
    if copy.ray.mode == "split":  # there the servers have devices that the trainer's cluster lacks: they share its own
        copy.ray.mode, copy.trainer.v1 = "shared", V1Config(buffer=copy.trainer.v1.buffer)
        copy.trainer.v1.buffer.max_groups = copy.trainer.v1.buffer.max_megabytes = None
        copy.actor_rollout_ref.rollout.nnodes, copy.ray.rollout = 0, GroupConfig()
    return copy


def folder_name(config: RunConfig, checkpoint: str) -> str:
    """Tells policies apart: a checkpoint by its content, the start policy by its folder and that of its adapter."""
    if not checkpoint:
        model = config.actor_rollout_ref.model
        start = "\n".join([model.path, *([model.lora_adapter_path] if model.lora_adapter_path else [])])
        return f"start-{hashlib.sha256(start.encode()).hexdigest()[:_DIGITS]}"
    return f"{checkpoint.rstrip('/').rpartition('/')[2]}-{content_digest(checkpoint)[:_DIGITS]}"

"""The run's prompt streams and its length."""

from __future__ import annotations

from verl_core.config import RunConfig
from verl_core.data.dataset import training_stream, validation_stream
from verl_core.data.stream import PromptStream
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import ConfigError


def streams(config: RunConfig, tokenizer: ChatTokenizer) -> tuple[PromptStream, PromptStream | None]:
    """(training, validation or None). Raises DataError: see `verl_core.data.dataset`."""
    train = training_stream(config, config.data.train_files, tokenizer)
    return train, validation_stream(config, config.data.val_files, tokenizer)


def total_steps(config: RunConfig, stream: PromptStream) -> int:
    """Global steps of the whole run: as configured, else all epochs.

    Raises:
        ConfigError: the run would end before the policy is trained.
    """
    if (given := config.trainer.total_training_steps) is not None:
        return given  # the configuration's own checks have judged it
    total, warmup = config.trainer.total_epochs * stream.steps_per_epoch, config.trainer.critic_warmup
    if 0 < total <= warmup:
        raise ConfigError(
            f"trainer.critic_warmup: in the first {warmup} steps only the critic is trained, and the run has {total}. "
            "Lower it, or raise trainer.total_epochs"
        )
    return total

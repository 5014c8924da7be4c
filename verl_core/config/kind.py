"""What a configuration is of. Invariant: reinforcement learning and fine-tuning never run each other's settings."""

from __future__ import annotations

from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError


def require_kind(config: RunConfig, supervised: bool) -> None:
    """Raise ConfigError unless the configuration is of supervised fine-tuning, or with `supervised` false is not."""
    if config.sft.enable and not supervised:
        raise ConfigError("sft.enable=true is supervised fine-tuning: run workflows/sft.py, or set it to false")
    if supervised and not config.sft.enable:
        raise ConfigError(
            "sft.enable=false: this configuration is of reinforcement learning. Set sft.enable=true, or run "
            "workflows/train.py"
        )

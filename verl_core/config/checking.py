"""Runs every check. Invariant: importing this module is what registers them all, so no check can be left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from verl_core.config import (
    checks_algorithm,
    checks_async,
    checks_correction,
    checks_critic,
    checks_data,
    checks_distillation,
    checks_filter,
    checks_lora,
    checks_multi_turn,
    checks_ranges,
    checks_reward,
    checks_reward_model,
    checks_rollout,
    checks_sampler,
    checks_sft,
    checks_trainer,
    checks_training,
)
from verl_core.config.checks import CHECKS, Facts
from verl_core.config.keys import sections
from verl_core.config.schema import RunConfig

CHECK_MODULES = (
    checks_ranges,
    checks_data,
    checks_algorithm,
    checks_filter,
    checks_reward,
    checks_reward_model,
    checks_sampler,
    checks_correction,
    checks_critic,
    checks_training,
    checks_lora,
    checks_distillation,
    checks_rollout,
    checks_multi_turn,
    checks_trainer,
    checks_async,
    checks_sft,
)


def problems_of(config: RunConfig, origin: Mapping[str, str], unreliable: Collection[str] = ()) -> list[str]:
    """Messages of all checks; those that speak of an `unreliable` key (its value was refused) are left out."""
    facts = Facts(config, origin)
    found = [message for check in CHECKS for message in check(facts)]
    return [message for message in dict.fromkeys(found) if not any(_speaks_of(message, key) for key in unreliable)]


def _speaks_of(message: str, key: str) -> bool:
    """Whether the message names the key, or a setting below it when the key is a section."""
    below = r"\.\w" if key in sections() else r"(?!\w)"
    return re.search(rf"(?<![\w.]){re.escape(key)}{below}", message) is not None

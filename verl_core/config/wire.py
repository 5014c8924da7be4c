"""RunConfig as plain values, text and digest, and what may change in it. Invariant: there and back loses nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from verl_core.config.keys import paths
from verl_core.config.schema import RunConfig
from verl_core.config.typed import TypedReader
from verl_core.errors import ConfigError


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain values (mappings, lists, numbers, text, null), sharing nothing with `config`."""
    return asdict(config)


def from_dict(tree: Mapping[str, Any]) -> RunConfig:
    """Inverse of `to_dict`. Types are checked, settings are not checked against each other again.

    Raises:
        ConfigError: an unknown key or a wrong type, so not something that `to_dict` wrote.
    """
    reader = TypedReader({})
    config = reader.read(tree)
    if reader.problems:
        raise ConfigError("not a resolved configuration of this version: " + "; ".join(reader.problems))
    return config


def to_yaml(config: RunConfig) -> str:
    """YAML that `resolve` accepts as a source, every setting written down."""
    text: str = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, width=120)
    return text


def config_hash(config: RunConfig) -> str:
    """SHA-256, hex, over all settings; equal exactly when the configurations are equal."""
    return stable_hash(to_dict(config))


def stable_hash(value: Any) -> str:
    """SHA-256, hex, of a JSON value; does not depend on the order of keys.

    Raises:
        TypeError: the value is not JSON.
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


# What may differ when a run directory is taken up again: how long, how often, where to, on what; nothing that decides
# what a step computes.
CHANGEABLE = (
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.logger",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.steps_per_node",
    "trainer.init_timeout_s",
    "trainer.v1.buffer",
    "actor_rollout_ref.actor.call_timeout_s",
    "actor_rollout_ref.rollout.request_timeout_s",
    "reward.num_workers",
    "reward.reward_model.enable_resource_pool",
    "reward.reward_model.nnodes",
    "reward.reward_model.n_gpus_per_node",
    "reward.reward_model.timeout_s",
    "reward_training.save_freq",
    "reward.remote.max_concurrency",
    "reward.remote.requests_per_second",
    "distillation.call_timeout_s",
    "ray",
)
_LENGTH = ("trainer.total_epochs", "trainer.total_training_steps")
_ASSET = re.compile(r".*/assets/((?:policy|data|reward)-[0-9a-f]{12,}(?:/.*)?)", re.DOTALL)


def resume_difference(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that differ although they must not when a run is resumed, as `key: old -> new`, in schema order.

    The length of a run may change only while no learning rate depends on it; a refusal says which setting makes it so.
    """
    before, after = dict(paths(to_dict(old))), dict(paths(to_dict(new)))
    why = _length_matters(old)
    return [
        f"{key}: {before[key]!r} -> {after[key]!r}" + (why if key in _LENGTH else "")
        for key in before
        if _portable(before[key]) != _portable(after[key]) and not (_changeable(key) and not (why and key in _LENGTH))
    ]


def _length_matters(config: RunConfig) -> str:
    """Why the length of the run decides its learning rates, for a message; empty when it does not."""
    trained = [config.actor_rollout_ref.actor.optim, *([config.critic.optim] if config.needs_critic else [])]
    if any(optim.lr_scheduler_type == "cosine" for optim in trained):
        return " (lr_scheduler_type=cosine: the learning rate of each step depends on the length of the run)"
    if any(optim.lr_warmup_steps < 0 and optim.lr_warmup_steps_ratio > 0 for optim in trained):
        return " (lr_warmup_steps_ratio > 0: the learning rate of the warm-up depends on the length of the run)"
    return ""


def _portable(value: Any) -> Any:
    """Assets are named by a hash of what made them (`verl_core.trainer.assets`): where their root lies is no
    difference."""
    if isinstance(value, list):
        return [_portable(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: _portable(entry) for name, entry in value.items()}
    asset = _ASSET.fullmatch(value) if isinstance(value, str) else None
    return asset[1] if asset else value


def _changeable(key: str) -> bool:
    return any(key == entry or key.startswith(f"{entry}.") for entry in CHANGEABLE)

"""What a run needs before it starts: data files, a policy folder, a reward model's where it has one; found or made.

Invariant: what is made lands under <default_local_dir>/assets/<kind>-<hash of its settings>, whole or not at all; the
same settings give the same path, so a rerun finds it. That place is a local folder, never a URL.
"""

from __future__ import annotations

import os
from dataclasses import asdict, is_dataclass
from typing import Any, Literal

from verl_core.config import RunConfig, from_dict, stable_hash, to_dict
from verl_core.config.schema import PrepareConfig, RewardTrainingConfig, WarmStartConfig
from verl_core.config.teachers import Teacher, teachers_of
from verl_core.data.prepare import prepare
from verl_core.errors import ConfigError

# What makes an asset, the key that names a finished one, and how to stop making it.
_MADE = {
    "data": ("data.prepare", "data.train_files and data.val_files", "leave data.prepare out"),
    "policy": ("warm_start", "actor_rollout_ref.model.path", "set warm_start.enable=false"),
    "reward": ("reward_training", "reward.reward_model.model_path", "set reward_training.enable=false"),
}


def data_files(config: RunConfig) -> tuple[list[str], list[str]]:
    """(train files, validation files), prepared now if data.prepare says so. See `verl_core.data.prepare`."""
    if not config.data.prepare.enabled:
        return config.data.train_files, config.data.val_files
    prepared = prepare(config.data.prepare, data_folder(config))
    return [prepared.train], [prepared.val] if prepared.val else []


def model_folder(config: RunConfig) -> str:
    """Folder of the start policy, warm-started now if warm_start.enable says so.

    Raises:
        ConfigError: neither a path nor a warm start is configured.
    """
    if config.warm_start.enable:
        from verl_core.warm_start import warm_start

        return warm_start(config, policy_folder(config)).path
    if not config.actor_rollout_ref.model.path:
        raise ConfigError("actor_rollout_ref.model.path is empty: name a model folder, or set warm_start.enable=true")
    return config.actor_rollout_ref.model.path


def teacher_folders(config: RunConfig) -> dict[str, str]:
    """Folders of the teachers that are made here, made now, by their names. They need the data, as the policy does."""
    making = teachers_made(config)
    if not making:
        return {}
    from verl_core.warm_start import warm_start

    return {name: warm_start(apart, policy_folder(apart)).path for name, apart in making.items()}


def teachers_made(config: RunConfig) -> dict[str, RunConfig]:
    """For each teacher that is made: a configuration whose `warm_start` makes it."""
    return {teacher.name: _in_its_place(config, teacher) for teacher in teachers_of(config) if teacher.making}


def _in_its_place(config: RunConfig, teacher: Teacher) -> RunConfig:
    apart = from_dict(to_dict(config))
    apart.warm_start = teacher.making or apart.warm_start
    return apart


def data_folder(config: RunConfig) -> str:
    """Where the dataset of `data.prepare` belongs.

    Raises:
        ConfigError: trainer.default_local_dir is a URL.
    """
    return _asset(config, "data", config.data.prepare)


def policy_folder(config: RunConfig) -> str:
    """Where the policy of `warm_start` belongs; it depends on the task it is taught.

    Raises:
        ConfigError: trainer.default_local_dir is a URL.
    """
    data, made = config.data, asdict(config.warm_start)
    turns = config.actor_rollout_ref.rollout.multi_turn
    taught = [data.prepare, data.train_files, data.val_files]
    if not turns.enable:
        del made["tool_share"]  # nothing reads it
        return _asset(config, "policy", made, *taught)
    return _asset(config, "policy", made, *taught, [turns.format, turns.tools, turns.tool_config_path])


def reward_folder(config: RunConfig) -> str:
    """Where the reward model of `reward_training` belongs; it depends on the policy that it starts from and on the rows
    that its pairs are built of.

    Args:
        config: as the user wrote it, before assets took the place of how they are made.

    Raises:
        ConfigError: trainer.default_local_dir is a URL.
    """
    data, training = config.data, asdict(config.reward_training)
    for key in ("enable", "save_freq"):  # change nothing of the model
        del training[key]
    start = [config.warm_start, config.actor_rollout_ref.model.path]
    return _asset(config, "reward", training, *start, data.prepare, data.train_files, data.max_response_length)


def with_reward_model(ready: RunConfig, folder: str) -> RunConfig:
    """A copy that names the trained reward model instead of how to train it."""
    named = from_dict(to_dict(ready))
    named.reward_training = RewardTrainingConfig()
    named.reward.reward_model.model_path = folder
    return named


def with_assets(
    config: RunConfig, train: list[str], val: list[str], model: str, teachers: dict[str, str] | None = None
) -> RunConfig:
    """A copy of `config` that names the files and the folder instead of how to make them; so it can be used as a source
    again. How they were made is written down beside them.

    Args:
        teachers: folder by name, of those that were made.
    """
    ready = from_dict(to_dict(config))
    ready.data.prepare, ready.warm_start = PrepareConfig(), WarmStartConfig()
    ready.data.train_files, ready.data.val_files = train, val
    ready.actor_rollout_ref.model.path = model
    for name, folder in (teachers or {}).items():
        entry: dict[str, Any] = {**ready.distillation.teacher_models[name], "model_path": folder}
        entry.pop("warm_start", None)
        ready.distillation.teacher_models[name] = entry
    return ready


def _asset(config: RunConfig, kind: Literal["data", "policy", "reward"], *settings: object) -> str:
    root = config.trainer.default_local_dir
    if "://" in root:
        made, named, off = _MADE[kind]
        raise ConfigError(
            f"trainer.default_local_dir={root} is a URL, and {made} writes to a local folder. Run once with a local "
            f"folder, or make it by other means, then name the result in {named} and {off}."
        )
    plain = [asdict(part) if is_dataclass(part) and not isinstance(part, type) else part for part in settings]
    return os.path.abspath(os.path.join(root, "assets", f"{kind}-{stable_hash(plain)[:12]}"))

"""resolve_config, the first node. Invariant: a configuration that cannot work ends the run here, before Ray starts."""

from __future__ import annotations

import os
from typing import NamedTuple

from flytekit import task

from tasks.assets import data_key, policy_key, teachers_key
from tasks.place import is_local
from tasks.ray_config import DRIVER
from verl_core.config import resolve, to_dict
from verl_core.errors import ConfigError


class ResolvedConfig(NamedTuple):
    """Attributes:
    config: every setting, defaults included: what the console shows for this run.
    data_key, policy_key, teachers_key: keys of the caches of data files, start policy and teachers.
    """

    config: dict
    data_key: str
    policy_key: str
    teachers_key: str


@task(requests=DRIVER)
def resolve_config(config: dict, overrides: list[str]) -> ResolvedConfig:
    """Compose recipes and overrides, check everything, and tell all problems at once.

    Raises:
        ConfigError: something in it cannot work.
    """
    resolved = resolve(config, overrides).config
    if not is_local():
        require_shared(resolved.trainer.default_local_dir)
    return ResolvedConfig(to_dict(resolved), data_key(resolved), policy_key(resolved), teachers_key(resolved))


def require_shared(root: str) -> None:
    """Refuse a run directory inside a pod: the next node's pod has another disk.

    Raises:
        ConfigError: `root` is relative, so it lies in the pod's own working directory.
    """
    if "://" not in root and not os.path.isabs(root):
        raise ConfigError(
            f"trainer.default_local_dir={root} is relative: on a cluster it must be storage that every node reaches. "
            "Name the absolute path of a volume that all pods mount, or a URL such as s3://bucket/runs."
        )

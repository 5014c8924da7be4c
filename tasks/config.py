"""resolve_config, the first node. Invariant: a configuration that cannot work ends the run here, before Ray starts."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import task

from tasks.assets import data_key, policy_key
from tasks.ray_config import DRIVER
from verl_core.config import resolve, to_dict


class ResolvedConfig(NamedTuple):
    """Attributes:
    config: every setting, defaults included: what the console shows for this run.
    data_key, policy_key: keys of the caches of data files and start policy.
    """

    config: dict
    data_key: str
    policy_key: str


@task(requests=DRIVER)
def resolve_config(config: dict, overrides: list[str]) -> ResolvedConfig:
    """Compose recipes and overrides, check everything, and tell all problems at once."""
    resolved = resolve(config, overrides).config
    return ResolvedConfig(to_dict(resolved), data_key(resolved), policy_key(resolved))

"""warm_start: the tiny policy alone, made once.

pyflyte run workflows/warm_start.py warm_start --config configs/quickstart.yaml
"""

from __future__ import annotations

from flytekit import workflow
from flytekit.types.directory import FlyteDirectory

from tasks.assets import start_policy
from tasks.config import resolve_config


@workflow
def warm_start(config: dict, overrides: list[str] = []) -> FlyteDirectory:  # noqa: B006  flytekit wants the default itself
    """Folder of the policy that a run of this configuration starts from.

    Args:
        config: a YAML file (or JSON) of settings.
        overrides: a JSON list of key=value, applied last.
    """
    resolved = resolve_config(config=config, overrides=overrides)
    return start_policy(config=resolved.config, key=resolved.policy_key)

"""sft: supervised fine-tuning, from rows of chat messages to a checkpoint and a report.

pyflyte run workflows/sft.py train --config configs/sft.yaml
"""

from __future__ import annotations

from flytekit import dynamic, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.assets import DataFiles, prepare_data, start_policy, with_assets
from tasks.config import resolve_config
from tasks.ray_config import DRIVER, limit, ray_config
from tasks.ray_job import RayTaskConfig
from tasks.sft import FineTuned, fine_tune_job
from verl_core.config import to_dict
from verl_core.config.kind import require_kind


@dynamic(requests=DRIVER)
def fine_tuning(config: dict, train: list[FlyteFile], val: list[FlyteFile], policy: FlyteDirectory) -> FineTuned:
    """One RayJob of the configured size."""
    ready = with_assets(config, DataFiles(train, val), policy)
    require_kind(ready, supervised=True)  # before a cluster is asked for
    size = ray_config(ready.ray, RayTaskConfig)
    done = fine_tune_job(config=to_dict(ready))
    return done.with_overrides(node_name="fine-tune", task_config=size, timeout=limit(ready.ray))


@workflow
def train(config: dict, overrides: list[str] = []) -> FineTuned:  # noqa: B006  flytekit wants the default itself
    """Fine-tune as the configuration says, or go on where this run directory stopped.

    Args:
        config: a YAML file (or JSON) of settings with sft.enable.
        overrides: a JSON list of key=value, applied last.
    """
    resolved = resolve_config(config=config, overrides=overrides)
    data = prepare_data(config=resolved.config, key=resolved.data_key)
    policy = start_policy(config=resolved.config, key=resolved.policy_key)
    return fine_tuning(config=resolved.config, train=data.train, val=data.val, policy=policy)

"""evaluate: validation metrics of one checkpoint.

pyflyte run workflows/evaluate.py evaluate --config configs/quickstart.yaml \\
    --checkpoint runs/quickstart/checkpoints/000060
"""

from __future__ import annotations

from typing import Any

from flytekit import dynamic, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.assets import DataFiles, prepare_data, start_policy, with_assets
from tasks.config import resolve_config
from tasks.evaluation import content_of, score_checkpoint
from tasks.ray_config import DRIVER, limit, ray_config
from tasks.ray_job import RayTaskConfig
from tasks.reward_model import name_reward_model, reward_model, reward_place
from verl_core.config import to_dict
from verl_core.config.kind import require_kind


@dynamic(requests=DRIVER)
def evaluation(
    config: dict, train: list[FlyteFile], val: list[FlyteFile], policy: FlyteDirectory, checkpoint: str
) -> dict[str, float]:
    """One RayJob of the configured size."""
    ready = with_assets(config, DataFiles(train, val), policy)
    require_kind(ready, supervised=False)  # before a cluster is asked for
    literal: Any = to_dict(ready)
    if ready.trains_reward_model and ready.reward.reward_model.in_validation:
        made = reward_model(config=literal, **reward_place(config, ready)).with_overrides(node_name="reward-model")
        literal = name_reward_model(config=literal, model=made.model).with_overrides(node_name="name-reward-model")
    scored = score_checkpoint(config=literal, checkpoint=checkpoint, content=content_of(checkpoint))
    size = ray_config(ready.ray, RayTaskConfig)
    return scored.with_overrides(node_name="evaluate", task_config=size, timeout=limit(ready.ray))


@workflow
def evaluate(config: dict, checkpoint: str = "", overrides: list[str] = []) -> dict[str, float]:  # noqa: B006
    """Score a checkpoint on the validation set.

    Args:
        config: a YAML file (or JSON) of settings.
        checkpoint: folder or URL under a run directory's checkpoints/; empty means the start policy.
        overrides: a JSON list of key=value, applied last.
    """
    resolved = resolve_config(config=config, overrides=overrides)
    data = prepare_data(config=resolved.config, key=resolved.data_key)
    policy = start_policy(config=resolved.config, key=resolved.policy_key)
    return evaluation(config=resolved.config, train=data.train, val=data.val, policy=policy, checkpoint=checkpoint)

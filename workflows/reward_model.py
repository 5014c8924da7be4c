"""reward_model: a reward model alone, from pairs of a better and a worse response.

pyflyte run workflows/reward_model.py reward_model_training --config configs/reward_model.yaml
"""

from __future__ import annotations

from flytekit import dynamic, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.assets import DataFiles, prepare_data, start_policy, with_assets
from tasks.config import resolve_config
from tasks.ray_config import DRIVER
from tasks.reward_model import RewardModel, reward_model, reward_place
from verl_core.config import to_dict


@dynamic(requests=DRIVER)
def trained(config: dict, train: list[FlyteFile], val: list[FlyteFile], policy: FlyteDirectory) -> RewardModel:
    """One node: which one depends on what the rows and the policy turned out to be."""
    ready = with_assets(config, DataFiles(train, val), policy)
    made = reward_model(config=to_dict(ready), **reward_place(config, ready)).with_overrides(node_name="reward-model")
    return RewardModel(made.model, made.loss, made.accuracy)


@workflow
def reward_model_training(config: dict, overrides: list[str] = []) -> RewardModel:  # noqa: B006  flytekit wants it
    """The reward model of `reward_training`, which a run of this configuration would make too.

    Args:
        config: a YAML file (or JSON) of settings.
        overrides: a JSON list of key=value, applied last.
    """
    resolved = resolve_config(config=config, overrides=overrides)
    data = prepare_data(config=resolved.config, key=resolved.data_key)
    policy = start_policy(config=resolved.config, key=resolved.policy_key)
    made = trained(config=resolved.config, train=data.train, val=data.val, policy=policy)
    return RewardModel(made.model, made.loss, made.accuracy)

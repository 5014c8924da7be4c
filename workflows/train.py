"""train: a whole run, from a configuration to a checkpoint and a report.

pyflyte run workflows/train.py train --config configs/quickstart.yaml --overrides '["trainer.total_training_steps=5"]'
"""

from __future__ import annotations

from flytekit import workflow

from tasks.assets import prepare_data, start_policy, teacher_policies
from tasks.config import resolve_config
from workflows.session import TrainResult, session


@workflow
def train(config: dict, overrides: list[str] = []) -> TrainResult:  # noqa: B006  flytekit wants the default itself
    """Train as the configuration says, or go on where this run directory stopped.

    Args:
        config: a YAML file (or JSON) of settings; `defaults: [quickstart]` names recipes of configs/.
        overrides: a JSON list of key=value, applied last.
    """
    resolved = resolve_config(config=config, overrides=overrides)
    data = prepare_data(config=resolved.config, key=resolved.data_key)
    policy = start_policy(config=resolved.config, key=resolved.policy_key)
    teachers = teacher_policies(config=resolved.config, key=resolved.teachers_key)
    return session(config=resolved.config, train=data.train, val=data.val, policy=policy, teachers=teachers)

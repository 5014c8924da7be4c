"""The documentation says what the code says: every key with its default, every message word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from verl_core.config import RunConfig, resolve, to_dict
from verl_core.config.keys import paths
from verl_core.config.layers import RECIPES
from verl_core.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}
SHOWN = [
    ["trainer.total_training_step=5"],
    ["trainer.val_only=true"],
    ["actor_rollout_ref.actor.optim.warmup_style=cosine"],
    ["data.train_batch_size=abc"],
    ["trainer.device=gpu"],
    ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=true"],
    ["data.train_batch_size=48"],
    ["actor_rollout_ref.rollout.top_p=0.9"],
    ["actor_rollout_ref.rollout.n=1"],
    ["algorithm.adv_estimator=optimal_token_baseline", "algorithm.rollout_correction.bypass_mode=true"],
    ["critic.enable=true"],
    ["algorithm.adv_estimator=gdpo"],
    ["distillation.enabled=true"],
    ["distillation.teacher_models.main.model_path=/models/teacher"],
    ["actor_rollout_ref.actor.policy_loss.loss_mode=dro"],
    ["algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is_threshold=0.5_5"],
    ["algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.bypass_mode=true"],
    ["actor_rollout_ref.rollout.max_model_len=1000"],
    ["actor_rollout_ref.actor.clip_ratio_c=1.0"],
    ["algorithm.kl_ctrl.horizon=500", "algorithm.use_kl_in_reward=true"],
    ["warm_start.enable=false"],
    ["sft.enable=true"],
    ["sft.enable=true", "sft.messages_key=null", "actor_rollout_ref.rollout.n=4"],
    ["trainer.seed"],
]


def test_every_key_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9_.]+)` \| `(.*?)` \|", (DOCS / "configuration.md").read_text(), re.MULTILINE))
    assert rows == {key: json.dumps(value) for key, value in paths(to_dict(RunConfig()))}


def test_every_recipe_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    assert [path.name for path in sorted(RECIPES.glob("*.yaml")) if f"`configs/{path.name}`" not in text] == []


@pytest.mark.parametrize("overrides", SHOWN, ids=lambda overrides: overrides[0])
def test_messages_are_documented_word_for_word(overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(LEAST, overrides)
    assert f"```text\n{caught.value}\n```" in (DOCS / "errors.md").read_text()

"""What a reward model needs and where it cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import resolve
from verl_core.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}
MODEL = "reward.reward_model"
ON = [f"{MODEL}.enable=true", f"{MODEL}.model_path=rm"]
OWN = [*ON, f"{MODEL}.enable_resource_pool=true", f"{MODEL}.nnodes=1"]
PART = "{name: liked, reward_model: true}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{MODEL}.enable=true"], f"{MODEL}.model_path: name the folder of a sequence classifier with one label"),
        ([f"{MODEL}.model_path=rm"], f"{MODEL}.model_path: has no effect without {MODEL}.enable=true"),
        ([*ON, "reward_training.enable=true"], f"{MODEL}.model_path: reward_training.enable=true makes the model"),
        (["reward_training.steps=5"], "reward_training.steps: has no effect without reward_training.enable=true"),
        (
            ["reward_training.enable=true", "reward_training.train_files=[a]", "reward_training.pairs=5"],
            "reward_training.pairs: has no effect with reward_training.train_files, which hold the pairs",
        ),
        (
            ["reward_training.enable=true", "reward_training.val_files=[a]"],
            "reward_training.val_files: has no effect without reward_training.train_files",
        ),
        ([f"reward.composite=[{PART}]"], "reward.composite: part 'liked' is the reward model, and"),
        ([*ON, "reward.composite=[{name: a, verifier: row}]"], f"{MODEL}.enable: no part of reward.composite says"),
        (
            [*ON, f"reward.composite=[{PART}, {{name: again, reward_model: true}}]"],
            "reward.composite: more than one part is the reward model: ['liked', 'again']",
        ),
        (
            [*ON, f"reward.composite=[{PART}]", f"{MODEL}.in_validation=false"],
            f"{MODEL}.in_validation: without the reward model reward.composite has no part to validate by",
        ),
        ([*ON, "reward.composite=[{name: a, reward_model: x}]"], "true as its remote or reward_model"),
        (
            [*ON, "reward.custom_reward_function.path=f.py"],
            f"reward.custom_reward_function.path: has no effect with {MODEL}.enable=true, which scores everything",
        ),
        ([*ON, f"{MODEL}.enable_resource_pool=true"], f"{MODEL}.nnodes: with {MODEL}.enable_resource_pool=true it has"),
        ([*ON, f"{MODEL}.nnodes=1"], f"{MODEL}.nnodes: has no effect with {MODEL}.enable_resource_pool=false"),
        (
            [*ON, "trainer.v1.trainer_mode=separate_async"],
            f"{MODEL}.enable_resource_pool: false lets the reward model take turns with sleeping servers",
        ),
        (
            [*ON, "algorithm.filter_groups.enable=true"],
            f"{MODEL}.enable_resource_pool: false lets the reward model score after sampling",
        ),
        ([*ON, f"{MODEL}.max_token_len_per_gpu=100"], f"{MODEL}.max_token_len_per_gpu: 100 is less than"),
    ],
)
def test_what_cannot_work_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(LEAST, overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ON,
        [*ON, "trainer.v1.trainer_mode=colocate_async"],
        [*ON, "trainer.use_v1=false"],
        [*OWN, "trainer.v1.trainer_mode=separate_async"],
        [*OWN, "algorithm.filter_groups.enable=true"],
        [*ON, f"reward.composite=[{PART}, {{name: right, verifier: row}}]", f"{MODEL}.in_validation=false"],
        [*ON, f"{MODEL}.in_validation=false", "reward.custom_reward_function.path=f.py"],
        [f"{MODEL}.enable=true", "reward_training.enable=true"],
        ["reward_training.enable=true"],
    ],
)
def test_what_works_passes(overrides: list[str]) -> None:
    resolve(LEAST, overrides)


def test_devices_of_its_own_are_counted_and_shared_ones_are_not() -> None:
    own = resolve(LEAST, [*OWN, f"{MODEL}.n_gpus_per_node=3"]).config
    assert (own.reward_devices, own.colocates_reward_model, own.num_devices) == (3, False, 1)
    shared = resolve(LEAST, ON).config
    assert (shared.reward_devices, shared.colocates_reward_model) == (0, True)
    groups = ["ray.worker.gpu=2", "ray.worker.replicas=1", "trainer.device=cuda"]
    with pytest.raises(ConfigError, match=r"n_gpus_per_node \+ reward\.reward_model\.nnodes x n_gpus_per_node"):
        resolve(LEAST, [*OWN, f"{MODEL}.n_gpus_per_node=2", *groups])


def test_the_refusal_is_documented_word_for_word() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(LEAST, [*ON, "trainer.v1.trainer_mode=separate_async"])
    for page in ("reward_model.md", "errors.md"):
        assert f"```text\n{caught.value}\n```" in (DOCS / page).read_text()

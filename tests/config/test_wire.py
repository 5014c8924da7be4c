"""RunConfig there and back, digests, and what may change on resume."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config import (
    RunConfig,
    config_hash,
    from_dict,
    resolve,
    resume_difference,
    stable_hash,
    to_dict,
    to_yaml,
)
from verl_core.config.keys import field_types
from verl_core.config.wire import CHANGEABLE

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type, ranges not kept: the wire must not care."""
    if is_dataclass(hint) and isinstance(hint, type):
        return st.builds(hint, **{name: values_of(inner) for name, inner in field_types(hint).items()})
    scalars = {
        bool: st.booleans(),
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False),
        str: st.text(),
        type(None): st.none(),
    }
    if hint in scalars:
        return scalars[hint]
    kind = get_origin(hint)
    if kind is Literal:
        return st.sampled_from(get_args(hint))
    if kind is list:
        return st.lists(values_of(get_args(hint)[0]), max_size=3)
    if kind is dict:
        return st.dictionaries(st.text(), json_values, max_size=3)
    return st.one_of(*(values_of(part) for part in get_args(hint)))


@given(values_of(RunConfig))
def test_there_and_back_loses_nothing(config: RunConfig) -> None:
    assert from_dict(to_dict(config)) == config
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@given(values_of(RunConfig))
def test_equal_configurations_and_only_those_have_equal_hashes(config: RunConfig) -> None:
    twin = copy.deepcopy(config)
    assert config_hash(twin) == config_hash(config)
    twin.trainer.seed += 1
    assert config_hash(twin) != config_hash(config)


def test_the_hash_is_sha256_of_sorted_json() -> None:
    # printf '{"a":1,"b":[null]}' | sha256sum
    assert stable_hash({"b": [None], "a": 1}) == "8977f14eaca9917791c9fe76774f63718de7578b62a92953e793da962a11a29e"


def test_to_dict_shares_nothing() -> None:
    config = RunConfig()
    to_dict(config)["trainer"]["logger"].append("x")
    assert config == RunConfig()


def test_yaml_is_a_source(tmp_path: Path) -> None:
    config = resolve(str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml")).config
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert resolve(str(path)).config == config
    assert yaml.safe_load(to_yaml(config)) == to_dict(config)


def test_changeable_keys_exist_and_do_not_block_a_resume() -> None:
    flat = leaves(RunConfig())
    for entry in CHANGEABLE:
        assert any(key == entry or key.startswith(f"{entry}.") for key in flat), entry
    old, new = RunConfig(), RunConfig()
    new.trainer.total_training_steps, new.trainer.save_freq, new.trainer.test_freq = 5, 6, 7
    new.trainer.logger, new.trainer.resume_mode, new.trainer.steps_per_node = ["console"], "disable", 4
    new.trainer.default_local_dir, new.trainer.experiment_name = "elsewhere", "other"
    new.ray.worker.gpu = 8
    assert resume_difference(old, new) == []


def test_everything_else_blocks_a_resume_and_is_named() -> None:
    old, new = RunConfig(), RunConfig()
    new.data.seed, new.actor_rollout_ref.actor.optim.lr, new.data.prepare.config = 2, 0.5, {"a": 1}
    assert resume_difference(old, new) == [
        "data.prepare.config: {} -> {'a': 1}",
        "data.seed: 1 -> 2",
        "actor_rollout_ref.actor.optim.lr: 1e-06 -> 0.5",
    ]


@pytest.mark.parametrize("key", ["total_epochs", "total_training_steps"])
def test_the_length_is_fixed_while_a_learning_rate_depends_on_it(key: str) -> None:
    def differences(**optim: Any) -> list[str]:
        old, new = RunConfig(), RunConfig()
        for config in (old, new):
            vars(config.actor_rollout_ref.actor.optim).update(optim)
        setattr(new.trainer, key, 5)
        return resume_difference(old, new)

    assert differences() == differences(lr_warmup_steps=10) == []
    assert differences(lr_warmup_steps=10, lr_warmup_steps_ratio=0.1) == []  # the ratio is not read then
    (cosine,) = differences(lr_scheduler_type="cosine", lr_warmup_steps=10)
    assert cosine.startswith(f"trainer.{key}: {getattr(RunConfig().trainer, key)!r} -> 5 (lr_scheduler_type=cosine: ")
    old, new = RunConfig(), RunConfig()
    old.critic.optim.lr_scheduler_type = new.critic.optim.lr_scheduler_type = "cosine"
    setattr(new.trainer, key, 5)
    assert resume_difference(old, new) == []  # no critic, so nobody reads it
    old.algorithm.adv_estimator = new.algorithm.adv_estimator = "gae"
    assert resume_difference(old, new) == [cosine]
    (warm_up,) = differences(lr_warmup_steps_ratio=0.1)
    assert warm_up.endswith(
        "(lr_warmup_steps_ratio > 0: the learning rate of the warm-up depends on the length of the run)"
    )


def test_only_made_assets_may_lie_elsewhere() -> None:
    def differs(before: str, after: str) -> bool:
        old, new = RunConfig(), RunConfig()
        old.data.train_files, new.data.train_files = [before], [after]
        return resume_difference(old, new) != []

    made = "assets/data-0123456789ab/train.parquet"
    assert not differs(f"/a/{made}", f"s3://b/c/{made}")
    assert differs(f"/a/{made}", f"/a/{made.replace('ab/', 'ac/')}")
    assert differs(f"/a/{made}", f"/a/{made.replace('train', 'val')}")
    assert differs(f"/a/{made}", "/b/data-0123456789ab/train.parquet")
    for own in ("assets/gsm8k/train.parquet", "assets/data-final/train.parquet", "assets/train.parquet"):
        assert differs(f"/old/{own}", f"/new/{own}")


@pytest.mark.parametrize("key", ["trainer.seed", "trainer.use_v1", "trainer.n_gpus_per_node", "trainer.device"])
def test_a_key_that_decides_what_a_step_computes_is_not_changeable(key: str) -> None:
    assert not any(key == entry or key.startswith(f"{entry}.") for entry in CHANGEABLE)


def leaves(section: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for item in fields(section):
        value = vars(section)[item.name]
        found += leaves(value, f"{prefix}{item.name}.") if is_dataclass(value) else [f"{prefix}{item.name}"]
    return found

"""Composition: defaults, overrides, interpolation, origins."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config import resolve, to_dict
from verl_core.config.layers import RECIPES
from verl_core.errors import ConfigError

# The least that resolves: rows and a policy have a source.
LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}


def write(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def refused(source: object, *overrides: str, recipes: Path = RECIPES) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(source, overrides, recipes)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != "base"))
def test_every_committed_recipe_resolves(recipe: str) -> None:
    """`base` is the part they share, so it is tested through them."""
    resolved = resolve(str(RECIPES / f"{recipe}.yaml"))
    assert resolved.config.trainer.experiment_name == recipe
    assert resolved.origin["trainer.project_name"] == "configs/base.yaml"


def test_a_loaded_mapping_gives_what_its_file_gives() -> None:
    import yaml

    path = RECIPES / "quickstart.yaml"
    loaded = yaml.safe_load(path.read_text())  # as pyflyte loads it: 1e-4 without a dot stays text
    assert loaded["actor_rollout_ref"]["actor"]["optim"]["lr"] == "5e-4"
    assert resolve(loaded).config == resolve(str(path)).config


def test_later_layers_win_and_origin_names_the_last() -> None:
    resolved = resolve({**LEAST, "trainer": {"seed": 2}}, ["trainer.seed=3", "trainer.seed=4"])
    assert resolved.config.trainer.seed == 4
    assert resolved.origin["trainer.seed"] == "override trainer.seed=4"
    assert resolved.origin["warm_start.enable"] == "the given configuration"
    assert resolved.origin["trainer.nnodes"] == "default"


def test_defaults_compose_in_order(tmp_path: Path) -> None:
    write(tmp_path, "low", "trainer: {seed: 1, save_freq: 5}\ndata: {seed: 7}")
    write(tmp_path, "high", "trainer: {seed: 2}")
    top = write(tmp_path, "top", "defaults: [low, high]\ndata: {seed: 9}")
    config = resolve(top, ["warm_start.enable=true", "data.prepare.task=one_digit_sums",
                           "data.prepare.train_size=64", "data.prepare.val_size=8"]).config  # fmt: skip
    assert (config.trainer.seed, config.trainer.save_freq, config.data.seed) == (2, 5, 9)


def test_a_base_named_twice_does_not_undo_what_came_after_it(tmp_path: Path) -> None:
    write(tmp_path, "base", "trainer: {seed: 1}\nwarm_start: {enable: true}")
    write(tmp_path, "first", "defaults: [base]\ntrainer: {seed: 2}")
    write(
        tmp_path,
        "second",
        "defaults: [base]\ndata: {prepare: {task: one_digit_sums, train_size: 64, val_size: 8}}",
    )
    assert resolve(write(tmp_path, "top", "defaults: [first, second]")).config.trainer.seed == 2


def test_defaults_beside_the_file_come_before_those_of_the_recipes_folder(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    for folder, seed in ((near, 1), (far, 2)):
        write(folder, "base", f"trainer: {{seed: {seed}}}")
    write(
        far, "rest", "data: {prepare: {task: one_digit_sums, train_size: 64, val_size: 8}}\nwarm_start: {enable: true}"
    )
    top = write(near, "top", "defaults: [base, rest]")
    assert resolve(top, recipes=far).config.trainer.seed == 1
    assert resolve({"defaults": ["base", "rest"]}, recipes=far).config.trainer.seed == 2


def test_defaults_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", "defaults: [b]")
    write(tmp_path, "b", "defaults: [a]")
    assert "defaults go in a circle: a -> b -> a" in refused(str(tmp_path / "a.yaml"))


def test_missing_files_are_named_with_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, "only", "trainer: {}")
    message = refused(str(tmp_path / "none.yaml"), recipes=tmp_path)
    assert f"no configuration file {tmp_path}/none.yaml (recipes: only)" in message
    assert "no recipe 'none'" in refused({"defaults": ["none"]}, recipes=tmp_path)


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    assert "is not YAML" in refused(write(tmp_path, "bad", "trainer: [1"))
    assert "duplicate key seed" in refused(write(tmp_path, "twice", "trainer:\n  seed: 1\n  seed: 2"))
    assert "must hold a mapping" in refused(write(tmp_path, "list", "- 1"))
    assert "defaults: expected a list of recipe names" in refused(write(tmp_path, "word", "defaults: base"))


def test_override_values_are_yaml_and_exponents_are_floats() -> None:
    config = resolve(
        LEAST,
        [
            "actor_rollout_ref.actor.optim.lr=1e-5",
            "trainer.logger=[console]",
            "trainer.total_training_steps=null",
            "trainer.use_v1=false",
            "data.prepare.config.anything={a: 1}",
            "trainer.experiment_name=x",
        ],
    ).config
    assert config.actor_rollout_ref.actor.optim.lr == 1e-5
    assert config.trainer.logger == ["console"]
    assert config.trainer.total_training_steps is None
    assert config.trainer.use_v1 is False
    assert config.data.prepare.config == {"anything": {"a": 1}}


def test_malformed_overrides_are_all_told() -> None:
    message = refused(LEAST, "trainer.seed", "+trainer.seed=1", "~trainer.seed", "trainer.logger=[a")
    assert "override 'trainer.seed': write key=value" in message
    assert "override '+trainer.seed=1': no Hydra here; write 'trainer.seed=1'" in message
    assert "override '~trainer.seed'" in message
    assert "override 'trainer.logger=[a': the value is not YAML" in message


def test_interpolation_reaches_defaults_and_overrides() -> None:
    source = {**LEAST, "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": "${data.train_batch_size}"}}}
    assert resolve(source).config.actor_rollout_ref.actor.ppo_mini_batch_size == 32
    assert resolve(source, ["data.train_batch_size=8"]).config.actor_rollout_ref.actor.ppo_mini_batch_size == 8
    source["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = "${data.nowhere}"
    assert "an interpolation in the configuration cannot be resolved" in refused(source)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    lr=st.floats(0, 1, allow_nan=False),
    n=st.integers(2, 64),
    mini=st.integers(1, 16),
    times=st.integers(1, 4),
)
def test_resolving_what_was_resolved_changes_nothing(seed: int, lr: float, n: int, mini: int, times: int) -> None:
    overrides = [
        f"trainer.seed={seed}",
        f"actor_rollout_ref.actor.optim.lr={lr!r}",
        f"actor_rollout_ref.rollout.n={n}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={mini}",
        f"data.train_batch_size={mini * times}",
    ]
    once = resolve(LEAST, overrides).config
    assert (once.trainer.seed, once.actor_rollout_ref.actor.optim.lr) == (seed, lr)
    assert resolve(to_dict(once)).config == once

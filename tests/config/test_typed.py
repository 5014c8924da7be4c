"""Types and keys: what enters, what is refused, and how it is told."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from verl_core.config import RunConfig, from_dict, resolve, to_dict
from verl_core.config.checks_ranges import RANGES
from verl_core.config.keys import leaf_types, nearest, sections
from verl_core.config.unsupported import ANSWERS, advice
from verl_core.errors import ConfigError

LEAST = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(LEAST, overrides)
    return str(caught.value)


def leaves_by_hand(section: Any, prefix: str = "") -> dict[str, Any]:
    """All settings by walking an instance, not type hints: independent of `keys.py`."""
    found: dict[str, Any] = {}
    for item in fields(section):
        value = vars(section)[item.name]
        key = f"{prefix}{item.name}"
        found |= leaves_by_hand(value, f"{key}.") if is_dataclass(value) else {key: value}
    return found


def test_leaf_keys_are_those_of_the_instance() -> None:
    assert list(leaf_types()) == list(leaves_by_hand(RunConfig()))


def test_every_number_has_a_range_and_every_default_is_inside() -> None:
    numeric = {
        key
        for key, hint in leaf_types().items()
        if "Literal" not in str(hint) and ("int" in str(hint) or "float" in str(hint))
    }
    assert numeric == set(RANGES)
    for key, value in leaves_by_hand(RunConfig()).items():
        for number in value if isinstance(value, list) else [value]:
            if key in RANGES and number is not None and key not in ("data.prepare.train_size",):
                assert RANGES[key].holds(number), key


@pytest.mark.parametrize("key", sorted(RANGES))
def test_out_of_range_infinite_and_nan_are_refused(key: str) -> None:
    bounds, hint = RANGES[key], str(leaf_types()[key])
    wrong = [] if bounds.low == -math.inf else [bounds.low - 3]
    wrong += [] if bounds.high == math.inf else [bounds.high + 1]
    if "float" in hint:
        wrong += [math.inf, math.nan]
    for number in wrong:
        value = str(number if "float" in hint else int(number)).replace("inf", ".inf").replace("nan", ".nan")
        told = refused(f"{key}=[{value}, {value}]" if "list" in hint else f"{key}={value}")
        assert f"{key}: must be " in told, told


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.seed=abc", "trainer.seed: expected a whole number, got 'abc' (text)"),
        ("trainer.seed=true", "trainer.seed: expected a whole number, got True (boolean)"),
        ("trainer.seed=1.5", "trainer.seed: expected a whole number, got 1.5 (number)"),
        ("trainer.use_v1=1", "trainer.use_v1: expected true or false, got 1 (whole number)"),
        ("trainer.seed=null", "trainer.seed: expected a whole number, got null"),
        (
            "trainer.total_training_steps=x",
            "trainer.total_training_steps: expected a whole number or null, got 'x' (text)",
        ),
        ("trainer.device=gpu", "trainer.device: expected one of auto, cpu, cuda"),
        ("actor_rollout_ref.rollout.name=vlm", "expected one of vllm, scripted, got 'vlm' (text)"),
        ("data.train_files=a.parquet", "data.train_files: expected a list, each entry text, got 'a.parquet' (text)"),
        ("trainer.logger=[1]", "trainer.logger: expected a list, each entry text, got [1] (list)"),
        ("data.prepare.config=3", "data.prepare.config: expected a section, got 3 (whole number)"),
        ("trainer=3", "trainer: expected a section with settings of its own, got 3 (whole number)"),
        ("trainer=null", "trainer: expected a section with settings of its own, got null"),
        ("trainer.seed.a=1", "trainer.seed: expected a whole number, got {'a': 1} (section)"),
        ("actor_rollout_ref.actor.optim.lr=x", "actor_rollout_ref.actor.optim.lr: expected a number, got 'x' (text)"),
    ],
)
def test_wrong_types_say_what_was_given_and_what_is_expected(override: str, message: str) -> None:
    told = refused(override)
    assert message in told
    assert "set in " in told


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("trainer.total_training_step", "trainer.total_training_steps"),
        ("actor.optim.lr", "actor_rollout_ref.actor.optim.lr"),
        ("rollout.n", "actor_rollout_ref.rollout.n"),
        ("optim.lr", "actor_rollout_ref.actor.optim.lr"),
        ("data.train_bach_size", "data.train_batch_size"),
        ("actor_rollout_ref.rollout.temprature", "actor_rollout_ref.rollout.temperature"),
        ("trainner", "trainer"),
        ("kl_ctrl.kl_coef", "algorithm.kl_ctrl.kl_coef"),
    ],
)
def test_unknown_keys_come_with_the_nearest_one(given: str, meant: str) -> None:
    assert nearest(given) == meant
    assert f"{given}: unknown key; did you mean {meant}?" in refused(f"{given}=1")


def test_an_unknown_key_with_no_neighbour_is_just_unknown() -> None:
    assert "zzz.qqq: unknown key (set in override zzz.qqq=1)" in refused("zzz.qqq=1")


def test_problems_are_all_in_one_message() -> None:
    told = refused("zzz=1", "trainer.seed=x", "actor_rollout_ref.rollout.top_p=0.5", "trainer.val_only=true")
    assert told.startswith("4 problems in the configuration:\n")
    assert all(key in told for key in ("zzz", "trainer.seed", "actor_rollout_ref.rollout.top_p", "trainer.val_only"))


def test_a_refused_value_is_not_judged_again() -> None:
    """train_batch_size falls back to 32, which 5 does not divide; that would be a false second problem."""
    told = refused("data.train_batch_size=x", "actor_rollout_ref.actor.ppo_mini_batch_size=5")
    assert told.startswith("1 problem in")


def test_a_refused_key_does_not_hide_those_that_begin_like_it() -> None:
    """`rollout.n` is the beginning of `rollout.num_servers`."""
    told = refused("actor_rollout_ref.rollout.n=x", "actor_rollout_ref.rollout.num_servers=0")
    assert "actor_rollout_ref.rollout.num_servers: must be at least 1, got 0" in told


# verl's own keys (notes on its configuration surface), and what is said about each.
@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("trainer.balance_batch", "not needed"),
        ("trainer.val_only", "evaluate"),
        ("trainer.default_hdfs_dir", "trainer.default_local_dir"),
        ("trainer.max_critic_ckpt_to_keep", "trainer.max_actor_ckpt_to_keep"),
        ("trainer.checkpoint_callback_class", "not supported yet"),
        ("trainer.log_val_generations", "report"),
        ("trainer.rollout_data_dir", "trajectories.parquet"),
        ("algorithm.filter_groups.max_inflight_gen_batches", "replaced at once"),
        ("algorithm.use_pf_ppo", "not supported yet"),
        ("algorithm.pf_ppo.weight_pow", "not supported yet"),
        ("data.gen_batch_size", "data.train_batch_size"),
        ("data.validation_shuffle", "file order"),
        ("data.dataloader_num_workers", "not needed"),
        ("data.filter_overlong_prompts", "data.truncation=drop"),
        ("data.sampler.class_name", "data.sampler.class_path"),
        ("data.filter_overlong_prompts_workers", "data.truncation=drop"),
        ("data.custom_cls.path", "data.prepare"),
        ("actor_rollout_ref.hybrid_engine", "not supported yet"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
        ("actor_rollout_ref.actor.use_dynamic_bsz", "always on"),
        ("actor_rollout_ref.actor.data_loader_seed", "trainer.seed"),
        ("actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_is", "algorithm.rollout_correction"),
        ("actor_rollout_ref.actor.checkpoint.async_save", "trainer.save_freq"),
        ("actor_rollout_ref.rollout.mode", "always asynchronous"),
        ("actor_rollout_ref.rollout.calculate_log_probs", "always on"),
        ("actor_rollout_ref.rollout.free_cache_engine", "always on"),
        ("actor_rollout_ref.rollout.full_determinism", "not supported yet"),
        ("actor_rollout_ref.rollout.max_num_batched_tokens", "max_num_seqs"),
        ("actor_rollout_ref.rollout.enable_chunked_prefill", "not supported yet"),
        ("actor_rollout_ref.rollout.load_format", "delete it"),
        ("actor_rollout_ref.rollout.router_config_path", "least loaded"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "default_agent_loop"),
        ("actor_rollout_ref.rollout.multi_turn.max_user_turns", "max_assistant_turns"),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend", "update_weights_backend"),
        ("actor_rollout_ref.rollout.disaggregation.enabled", "not supported yet"),
        ("actor_rollout_ref.rollout.enable_rollout_routing_replay", "not supported yet"),
        ("actor_rollout_ref.model.lora.rank", "use actor_rollout_ref.model.lora_rank"),
        ("actor_rollout_ref.model.lora.dropout", "no dropout"),
        ("actor_rollout_ref.model.lora_dropout", "no dropout"),
        ("critic.model.lora_rank", "not supported yet"),
        ("actor_rollout_ref.model.use_remove_padding", "always on"),
        ("actor_rollout_ref.model.gradient_checkpointing", "enable_gradient_checkpointing"),
        ("critic.ppo_micro_batch_size_per_gpu", "critic.ppo_max_token_len_per_gpu"),
        ("critic.model.override_config", "not supported yet"),
        ("reward.reward_manager.name", "data_source"),
        ("reward.reward_model.rollout.name", "transformers scores here"),
        ("reward.sandbox_fusion.url", "reward.sandbox"),
        ("reward.reward_kwargs.overlong_buffer_cfg.len", "use reward.overlong_buffer"),
        ("reward_model.overlong_buffer.enable", "use reward.overlong_buffer"),
        ("distillation.nnodes", "num_replicas"),
        ("distillation.teacher_key", "always data_source"),
        ("distillation.distillation_loss.jsd_beta", "not supported yet"),
        ("transfer_queue.enable", "trainer.use_v1=false"),
        ("skip.rollout.enable", "not supported yet"),
        ("global_profiler.tool", "not supported yet"),
    ],
)
def test_verl_keys_get_an_answer(key: str, answer: str) -> None:
    assert answer in advice(key)
    line = next(line for line in refused(f"{key}=1").splitlines() if f"- {key}: " in line)
    assert answer in line
    assert "unknown key" not in line


def test_no_answer_speaks_of_a_key_that_exists_and_every_key_it_names_does() -> None:
    known = set(leaf_types()) | sections()
    shadowed = [entry for entry, _ in ANSWERS if entry in known]
    assert shadowed == []
    for _, answer in ANSWERS:
        for word in (
            answer.replace(";", " ").replace(",", " ").replace(":", " ").replace("(", " ").replace(")", " ").split()
        ):
            key = word.split("=")[0].rstrip(".*")
            if key.startswith(("trainer.", "data.", "actor_rollout_ref.", "algorithm.", "reward.", "ray.")):
                assert key in known, answer


def test_from_dict_is_lossless_and_strict() -> None:
    config = resolve(LEAST, ["data.prepare.config={a: [1, {b: null}]}"]).config
    assert from_dict(to_dict(config)) == config
    with pytest.raises(ConfigError, match=r"not a resolved configuration of this version: trainer\.sed"):
        from_dict({"trainer": {"sed": 1}})

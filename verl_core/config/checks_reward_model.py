"""Checks of `reward.reward_model.*` and `reward_training.*`: one reward model, devices for it, a mode in which it can
score."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect

_MODEL, _TRAINING = "reward.reward_model", "reward_training"
_POOL = f"{_MODEL}.enable_resource_pool"


@check
def a_reward_model_is_named_once(facts: Facts) -> Iterator[str]:
    """It is read from a folder or trained here."""
    config = facts.config
    model, training = config.reward.reward_model, config.reward_training
    if not model.enable:
        yield from no_effect(facts, facts.given_below(_MODEL), f"without {_MODEL}.enable=true")
    elif not model.model_path and not training.enable:
        yield (
            f"{_MODEL}.model_path: name the folder of a sequence classifier with one label, or train one with"
            f" {_TRAINING}.enable=true"
        )
    elif model.model_path and training.enable:
        yield f"{_MODEL}.model_path: {_TRAINING}.enable=true makes the model; leave it empty"


@check
def training_settings_are_read(facts: Facts) -> Iterator[str]:
    """Pairs are read or built."""
    training = facts.config.reward_training
    if not training.enable:
        yield from no_effect(facts, facts.given_below(_TRAINING), f"without {_TRAINING}.enable=true")
        return
    if training.train_files:
        keys = [f"{_TRAINING}.pairs", f"{_TRAINING}.val_pairs"]
        yield from no_effect(facts, keys, f"with {_TRAINING}.train_files, which hold the pairs")
    else:
        yield from no_effect(facts, [f"{_TRAINING}.val_files"], f"without {_TRAINING}.train_files")


@check
def the_reward_model_is_asked(facts: Facts) -> Iterator[str]:
    """Alone, or as one part of a composite reward; what it replaces is not configured."""
    reward = facts.config.reward
    model, parts = reward.reward_model, reward.composite
    asked = [entry.get("name") for entry in parts if entry.get("reward_model")]
    if asked and not model.enable:
        yield f"reward.composite: part {asked[0]!r} is the reward model, and {_MODEL}.enable=false; enable it"
    if len(asked) > 1:
        yield f"reward.composite: more than one part is the reward model: {asked}"
    if not model.enable:
        return
    if parts and not asked:
        yield f"{_MODEL}.enable: no part of reward.composite says reward_model: true; add one, or disable the model"
    if len(parts) == len(asked) == 1 and not model.in_validation:
        yield (
            f"{_MODEL}.in_validation: without the reward model reward.composite has no part to validate by; add one, or"
            " leave reward.composite out: the rows' verifiers validate then"
        )
    if not parts and model.in_validation:
        custom = ["reward.custom_reward_function.path", "reward.custom_reward_function.name"]
        because = f"with {_MODEL}.enable=true, which scores everything; name all parts in reward.composite"
        yield from no_effect(facts, [*custom, *facts.given_below("reward.remote")], because)


@check
def the_reward_model_has_devices(facts: Facts) -> Iterator[str]:
    """Its own, or the trainer's while neither servers nor trainer use them."""
    config, model = facts.config, facts.config.reward.reward_model
    if not model.enable:
        return
    if model.enable_resource_pool:
        if model.nnodes < 1:
            yield f"{_MODEL}.nnodes: with {_POOL}=true it has devices of its own; set it to 1 or more"
        return
    yield from no_effect(facts, [f"{_MODEL}.nnodes", f"{_MODEL}.n_gpus_per_node"], f"with {_POOL}=false")
    if config.trainer.use_v1 and config.trainer.v1.trainer_mode == "separate_async":
        yield (
            f"{_POOL}: false lets the reward model take turns with sleeping servers, and with trainer.v1.trainer_mode="
            "separate_async servers never sleep; give it devices of its own: true and a number of nodes"
        )
    if config.algorithm.filter_groups.enable:
        yield (
            f"{_POOL}: false lets the reward model score after sampling, and algorithm.filter_groups.enable=true needs"
            " scores while groups are sampled; give it devices of its own: true and a number of nodes"
        )


@check
def sequences_fit_the_reward_model(facts: Facts) -> Iterator[str]:
    """A batch holds at least one sequence."""
    config, model = facts.config, facts.config.reward.reward_model
    need = config.data.max_prompt_length + config.data.max_response_length
    if model.enable and model.max_token_len_per_gpu < need:
        yield (
            f"{_MODEL}.max_token_len_per_gpu: {model.max_token_len_per_gpu} is less than data.max_prompt_length +"
            f" data.max_response_length = {need}; raise it"
        )

"""Checks of `distillation.*`: teachers that can be asked, and a loss that something comes of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name
from verl_core.config.checks_ranges import RANGES, out_of_range
from verl_core.config.teachers import SECTION, Teacher, read_teacher, teachers_of

_TEACH, _LOSS, _ACTOR = "distillation", "distillation.distillation_loss", "actor_rollout_ref.actor"
_WEIGHTS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")


@check
def distillation_settings_are_read(facts: Facts) -> Iterator[str]:
    """Without teachers nothing reads how to learn from them."""
    if not facts.config.distillation.enabled:
        yield from no_effect(facts, facts.given_below(_TEACH), f"without {_TEACH}.enabled=true")


@check
def somebody_teaches(facts: Facts) -> Iterator[str]:
    """Every entry can be read, and together they say who teaches what."""
    config = facts.config
    if not config.distillation.enabled:
        return
    entries = config.distillation.teacher_models
    if not entries:
        yield f"{SECTION}: {_TEACH}.enabled=true needs a teacher: give one a name, and its model_path"
    for name, entry in sorted(entries.items()):
        yield from read_teacher(config, name, entry)[1]
    for source, count in Counter(teacher.source for teacher in teachers_of(config)).items():
        if count > 1:
            what = "without a key, for all other sources" if source is None else f"of the data source {source!r}"
            yield f"{SECTION}: {count} teachers {what}; one must be enough"


@check
def teachers_can_be_asked(facts: Facts) -> Iterator[str]:
    """A folder that is there, or one that is made here; numbers in their ranges."""
    loss = facts.config.distillation.distillation_loss
    for teacher in teachers_of(facts.config):
        key = f"{SECTION}.{teacher.name}"
        yield from _folder(key, teacher)
        if teacher.replicas < 1:
            yield f"{key}.num_replicas: must be at least 1, got {teacher.replicas}"
        if teacher.max_num_seqs < 1:
            yield f"{key}.inference.max_num_seqs: must be at least 1, got {teacher.max_num_seqs}"
        if not 0 < teacher.gpu_memory_utilization < 1:
            yield (
                f"{key}.inference.gpu_memory_utilization: must be greater than 0 and less than 1, got"
                f" {teacher.gpu_memory_utilization}"
            )
        if loss.reads_topk and teacher.max_logprobs < loss.topk:
            yield (
                f"{key}.inference.max_logprobs: {teacher.max_logprobs} candidates per token are fewer than {_LOSS}.topk"
                f"={loss.topk}; raise it, or leave it null"
            )


def _folder(key: str, teacher: Teacher) -> Iterator[str]:
    if teacher.making is not None:
        if teacher.path:
            yield f"{key}.warm_start: {key}.model_path is given too; delete one of them"
        for name, value in asdict(teacher.making).items():
            if f"warm_start.{name}" in RANGES:
                yield from out_of_range(f"warm_start.{name}", value, f"{key}.warm_start.{name}")
        if teacher.making.hidden_size % 32:
            yield f"{key}.warm_start.hidden_size: must be a multiple of 32, got {teacher.making.hidden_size}"
    elif not teacher.path:
        yield f"{key}.model_path: no teacher; name its folder, or say in {key}.warm_start how it is made"
    elif not os.path.isdir(teacher.path):
        yield f"{key}.model_path: there is no folder {teacher.path}; name one with config.json, weights and tokenizer"


@check
def the_distance_is_known(facts: Facts) -> Iterator[str]:
    """The loss exists, and each setting of it is read."""
    loss = facts.config.distillation.distillation_loss
    yield from unknown_name(f"{_LOSS}.loss_mode", loss.loss_mode, names.DISTILLATION_LOSSES)
    if not facts.config.distillation.enabled:
        return
    if not loss.reads_topk:
        yield from no_effect(facts, [f"{_LOSS}.topk", f"{_LOSS}.tail"], f"with {_LOSS}.loss_mode={loss.loss_mode}")
    if not loss.use_task_rewards:
        because = f"with {_LOSS}.use_task_rewards=false: the distance is all there is"
        yield from no_effect(facts, [f"{_LOSS}.distillation_loss_coef"], because)


@check
def the_distance_has_a_gradient(facts: Facts) -> Iterator[str]:
    """Backpropagation needs a loss whose gradient knows the teacher; a reward is a number and has no gradient."""
    loss = facts.config.distillation.distillation_loss
    if not facts.config.distillation.enabled:
        return
    mode = f"{_LOSS}.loss_mode: {loss.loss_mode}"
    if loss.use_policy_gradient and loss.reads_topk:
        yield (
            f"{mode} says how the tokens that were not sampled should move, which a reward of the sampled one cannot"
            f" pass on; set {_LOSS}.use_policy_gradient=false, or use k1"
        )
    elif loss.use_policy_gradient and loss.loss_mode.endswith("+"):
        yield f"{mode} differs from {loss.loss_mode[:-1]} in its gradient, and {_LOSS}.use_policy_gradient reads values"
    elif not loss.use_policy_gradient and loss.loss_mode in names.KL_WITHOUT_GRADIENT:
        yield (
            f"{mode} has a gradient that does not know the teacher, 0 on average; use {loss.loss_mode}+, k3 or"
            f" forward_kl_topk, or set {_LOSS}.use_policy_gradient=true"
        )


@check
def teachers_see_the_same_distribution(facts: Facts) -> Iterator[str]:
    """Inference engines score given tokens at temperature 1, whatever they sample at."""
    temperature = facts.config.actor_rollout_ref.rollout.temperature
    if facts.config.distillation.enabled and temperature != 1.0:
        yield (
            f"actor_rollout_ref.rollout.temperature: {_TEACH}.enabled=true compares the policy at {temperature:g} with"
            " teachers that score at 1; set it to 1"
        )


@check
def what_is_left_without_the_task(facts: Facts) -> Iterator[str]:
    """Without the reward function, what only it feeds has no input."""
    config = facts.config
    if config.uses_task_rewards:
        return
    off = f"with {_LOSS}.use_task_rewards=false"
    if config.needs_critic:
        yield (
            f"algorithm.adv_estimator: {off} nothing reads the values of a critic; leave"
            f" algorithm.adv_estimator={config.algorithm.adv_estimator} and critic.* out"
        )
    elif facts.given("algorithm.adv_estimator"):
        yield from no_effect(facts, ["algorithm.adv_estimator"], off)
    if config.algorithm.use_kl_in_reward:
        yield f"algorithm.use_kl_in_reward: {off} no reward is read; use {_ACTOR}.use_kl_loss"
    if config.algorithm.filter_groups.enable:
        yield f"algorithm.filter_groups.enable: {off} it does not matter whether the rewards of a group differ"
    every = frozenset().union(*names.ADV_ESTIMATORS.values())
    yield from no_effect(facts, [f"algorithm.{name}" for name in sorted(every)], off)
    if config.distillation.distillation_loss.use_policy_gradient:
        return
    unread = frozenset().union(*names.POLICY_LOSSES.values()) | {"policy_loss.loss_mode"}
    because = f"{off} and use_policy_gradient=false: there is no policy loss"
    yield from no_effect(facts, [f"{_ACTOR}.{name}" for name in sorted(unread)], because)
    if config.distillation.distillation_loss.reads_topk:
        because = f"{off} and {_LOSS}.loss_mode=forward_kl_topk, which takes no weights of sampled tokens"
        yield from no_effect(facts, [f"algorithm.rollout_correction.{name}" for name in _WEIGHTS], because)

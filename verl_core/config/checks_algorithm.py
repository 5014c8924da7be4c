"""Checks of `algorithm.*` and `actor_rollout_ref.actor.*`: names, contradictions, settings that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"


# What people write for it elsewhere, and what it is here.
_MEANT_ESTIMATORS = {
    "ppo": "gae",
    "dr_grpo": "grpo, with algorithm.norm_adv_by_std_in_grpo=false",
    "drgrpo": "grpo, with algorithm.norm_adv_by_std_in_grpo=false",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}
_MEANT_LOSSES = {"ppo": "vanilla", "grpo": "vanilla", "gmpo": "geo_mean"}


def unknown_name(
    key: str, value: str, known: Collection[str], in_verl: Collection[str] = (), meant: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A message when `value` is not among the known names; what it means here, or the nearest one, is offered."""
    if value in known:
        return
    choices = ", ".join(known)
    if meant and value.lower() in meant:
        yield f"{key}: {value!r} is called {meant[value.lower()]} here (known: {choices})"
        return
    if value in in_verl:
        yield f"{key}: {value!r} is known in verl, not supported yet; use one of {choices}"
        return
    near = difflib.get_close_matches(value.lower(), known, n=1)
    yield f"{key}: unknown name {value!r}" + (f"; did you mean {near[0]}?" if near else "") + f" (known: {choices})"


@check
def names_are_known(facts: Facts) -> Iterator[str]:
    """Estimator, loss, aggregation and KL types exist."""
    algorithm, actor = facts.config.algorithm, facts.config.actor_rollout_ref.actor
    estimator = algorithm.adv_estimator
    known = tuple(names.ADV_ESTIMATORS)
    yield from unknown_name("algorithm.adv_estimator", estimator, known, meant=_MEANT_ESTIMATORS)
    yield from unknown_name("algorithm.kl_penalty", algorithm.kl_penalty, names.KL_TYPES, ("full",))
    loss = actor.policy_loss.loss_mode
    if loss == "bypass_mode":
        yield (
            f"{_LOSS}.loss_mode: bypass_mode is no loss of its own here; set"
            " algorithm.rollout_correction.bypass_mode=true, and choose the loss as ever"
        )
    else:
        yield from unknown_name(f"{_LOSS}.loss_mode", loss, tuple(names.POLICY_LOSSES), meant=_MEANT_LOSSES)
    yield from unknown_name(f"{_ACTOR}.loss_agg_mode", actor.loss_agg_mode, names.LOSS_AGG_MODES)
    yield from unknown_name(f"{_ACTOR}.kl_loss_type", actor.kl_loss_type, names.KL_TYPES, ("full",))


@check
def one_place_for_the_kl(facts: Facts) -> Iterator[str]:
    """The KL to the reference is charged once."""
    if facts.config.algorithm.use_kl_in_reward and facts.config.actor_rollout_ref.actor.use_kl_loss:
        yield (
            f"algorithm.use_kl_in_reward: together with {_ACTOR}.use_kl_loss the KL to the reference would be charged"
            " twice; set one of them to false"
        )


@check
def a_kl_in_the_loss_has_a_gradient(facts: Facts) -> Iterator[str]:
    """The gradient of log pi alone is 0 on average, whatever the reference says."""
    actor = facts.config.actor_rollout_ref.actor
    if actor.use_kl_loss and actor.kl_loss_type in names.KL_WITHOUT_GRADIENT:
        yield (
            f"{_ACTOR}.kl_loss_type: the gradient of {actor.kl_loss_type} is 0 on average and holds nothing back; use"
            f" {actor.kl_loss_type}+ or low_var_kl, or charge it in the reward (algorithm.use_kl_in_reward=true,"
            f" algorithm.kl_penalty={actor.kl_loss_type})"
        )


@check
def a_group_has_samples_to_compare(facts: Facts) -> Iterator[str]:
    """A group estimator with one sample per prompt has nothing to subtract."""
    estimator, n = facts.config.algorithm.adv_estimator, facts.config.actor_rollout_ref.rollout.n
    if facts.config.uses_task_rewards and estimator in names.GROUP_ESTIMATORS and n < 2:
        yield (
            f"actor_rollout_ref.rollout.n: algorithm.adv_estimator={estimator} compares the samples of one prompt; with"
            f" n={n} there is nothing to compare. Set it to at least 2"
        )


@check
def kl_settings_are_read(facts: Facts) -> Iterator[str]:
    """KL settings need the KL they belong to."""
    algorithm, actor = facts.config.algorithm, facts.config.actor_rollout_ref.actor
    if not algorithm.use_kl_in_reward:
        keys = ["algorithm.kl_penalty", *facts.given_below("algorithm.kl_ctrl")]
        yield from no_effect(facts, keys, "without algorithm.use_kl_in_reward=true")
    elif algorithm.kl_ctrl.type == "fixed":
        keys = ["algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"]
        yield from no_effect(facts, keys, "with algorithm.kl_ctrl.type=fixed")
    if not actor.use_kl_loss:
        keys = [f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type"]
        yield from no_effect(facts, keys, f"without {_ACTOR}.use_kl_loss=true")


@check
def estimator_settings_are_read(facts: Facts) -> Iterator[str]:
    """Each estimator reads its own settings."""
    estimator = facts.config.algorithm.adv_estimator
    every = frozenset().union(*names.ADV_ESTIMATORS.values())
    ignored = sorted(every - names.ADV_ESTIMATORS.get(estimator, every))
    keys = [f"algorithm.{name}" for name in ignored]
    yield from no_effect(facts, keys, f"with algorithm.adv_estimator={estimator}")


@check
def the_estimator_gets_its_inputs(facts: Facts) -> Iterator[str]:
    """Every input of the estimator comes from somewhere."""
    algorithm = facts.config.algorithm
    estimator = algorithm.adv_estimator
    if estimator == "gdpo":
        yield from _parts_of_the_reward(facts)


def _parts_of_the_reward(facts: Facts) -> Iterator[str]:
    algorithm = facts.config.algorithm
    keys, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if not keys:
        yield (
            "algorithm.gdpo_reward_keys: algorithm.adv_estimator=gdpo compares the named parts of the reward one by"
            " one; list the keys that the reward function returns beside its score"
        )
    if len(set(keys)) < len(keys):
        yield f"algorithm.gdpo_reward_keys: a part is named twice in {keys}"
    if weights and len(weights) != len(keys):
        yield (
            f"algorithm.gdpo_reward_weights: {len(weights)} weights for {len(keys)} algorithm.gdpo_reward_keys; give"
            " one for each, or none for equal weights"
        )
    if algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward: algorithm.adv_estimator=gdpo reads the named parts of the score, so the KL in"
            " the reward would be lost; use actor_rollout_ref.actor.use_kl_loss"
        )


@check
def loss_settings_are_read(facts: Facts) -> Iterator[str]:
    """Each loss reads its own settings; `clip_ratio` is only a default for the two sides."""
    actor = facts.config.actor_rollout_ref.actor
    loss = actor.policy_loss.loss_mode
    every = frozenset().union(*names.POLICY_LOSSES.values())
    read = names.POLICY_LOSSES.get(loss, every)
    ignored = [f"{_ACTOR}.{name}" for name in sorted(every - read)]
    yield from no_effect(facts, ignored, f"with {_LOSS}.loss_mode={loss}")
    if actor.clip_ratio_low is not None and actor.clip_ratio_high is not None and "clip_ratio" in read:
        because = f"when both {_ACTOR}.clip_ratio_low and {_ACTOR}.clip_ratio_high are given"
        yield from no_effect(facts, [f"{_ACTOR}.clip_ratio"], because)


@check
def the_loss_is_whole(facts: Facts) -> Iterator[str]:
    """Settings without a default are given, bounds are in order."""
    loss = facts.config.actor_rollout_ref.actor.policy_loss
    if loss.loss_mode == "dro" and loss.dro_beta is None:
        yield f"{_LOSS}.dro_beta: {_LOSS}.loss_mode=dro needs it, greater than 0; it has no default"
    if loss.clip_cov_lb >= loss.clip_cov_ub:
        yield (
            f"{_LOSS}.clip_cov_lb: {loss.clip_cov_lb} must be less than {_LOSS}.clip_cov_ub={loss.clip_cov_ub}; no"
            " token lies between"
        )


@check
def loss_scale_is_read(facts: Facts) -> Iterator[str]:
    """Only one aggregation mode divides by a chosen number."""
    mode = facts.config.actor_rollout_ref.actor.loss_agg_mode
    if mode != "seq-mean-token-sum-norm":
        yield from no_effect(facts, [f"{_ACTOR}.loss_scale_factor"], f"with {_ACTOR}.loss_agg_mode={mode}")

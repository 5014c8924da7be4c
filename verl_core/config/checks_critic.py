"""Checks of `critic.*` and `trainer.critic_warmup`: a critic exists when something reads its values, and not else."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name

_WARMUP = "trainer.critic_warmup"


@check
def a_critic_has_a_reader(facts: Facts) -> Iterator[str]:
    """The estimator decides whether there are values to compute."""
    config = facts.config
    estimator, enable = config.algorithm.adv_estimator, config.critic.enable
    reads = estimator in names.VALUE_ESTIMATORS
    if reads and enable is False:
        yield (
            f"critic.enable: algorithm.adv_estimator={estimator} needs the values of a critic; leave it null, or use an"
            " estimator without one"
        )
    if not reads and enable:
        able = ", ".join(sorted(names.VALUE_ESTIMATORS))
        yield (
            f"critic.enable: algorithm.adv_estimator={estimator} reads no values, so the critic would be trained for"
            f" nothing; leave it null, or use algorithm.adv_estimator={able}"
        )


@check
def critic_settings_are_read(facts: Facts) -> Iterator[str]:
    """Settings of the critic need one."""
    if not facts.config.needs_critic and facts.config.algorithm.adv_estimator not in names.VALUE_ESTIMATORS:
        keys = [key for key in facts.given_below("critic") if key != "critic.enable"]
        because = f"with algorithm.adv_estimator={facts.config.algorithm.adv_estimator}, which reads no values"
        yield from no_effect(facts, [*keys, _WARMUP], because)


@check
def the_loss_of_the_critic_is_known(facts: Facts) -> Iterator[str]:
    """The aggregation exists."""
    mode = facts.config.critic.loss_agg_mode
    if mode is not None:
        yield from unknown_name("critic.loss_agg_mode", mode, names.LOSS_AGG_MODES)


@check
def the_policy_is_trained_after_the_warm_up(facts: Facts) -> Iterator[str]:
    """A run ends with a policy that was trained."""
    trainer = facts.config.trainer
    if trainer.total_training_steps is not None and 0 < trainer.total_training_steps <= trainer.critic_warmup:
        yield (
            f"{_WARMUP}: in the first {trainer.critic_warmup} steps only the critic is trained, and trainer."
            f"total_training_steps={trainer.total_training_steps} ends before the policy is. Lower it"
        )

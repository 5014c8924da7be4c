"""Checks of what the actor and the critic set alike: mini-batches and optimizers. What the critic leaves open is the
actor's, and judged there."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.schema import OptimConfig

_ACTOR, _CRITIC = "actor_rollout_ref.actor", "critic"


def _mini_batches(facts: Facts) -> dict[str, int]:
    """Section -> its prompts per optimizer step, where it sets them."""
    config = facts.config
    if config.sft.enable:  # there a step is one mini-batch
        return {}
    found, own = {_ACTOR: config.actor_rollout_ref.actor.ppo_mini_batch_size}, config.critic.ppo_mini_batch_size
    if config.needs_critic and own is not None and own > 0:
        found[_CRITIC] = own
    return found


def _optimizers(facts: Facts) -> dict[str, OptimConfig]:
    return {_ACTOR: facts.config.actor_rollout_ref.actor.optim, _CRITIC: facts.config.critic.optim}


@check
def mini_batches_divide_the_batch(facts: Facts) -> Iterator[str]:
    """A step is a whole number of mini-batches."""
    batch = facts.config.data.train_batch_size
    for section, mini in _mini_batches(facts).items():
        if mini > 0 and batch % mini:
            yield (
                f"{section}.ppo_mini_batch_size: {mini} does not divide data.train_batch_size={batch} (both count"
                " prompts); the rest of the batch would never be trained on"
            )


@check
def every_rank_gets_rows(facts: Facts) -> Iterator[str]:
    """A mini-batch has at least one row for each rank."""
    config = facts.config
    for section, mini in _mini_batches(facts).items():
        rows = mini * config.actor_rollout_ref.rollout.n
        if rows < config.world_size:
            yield (
                f"{section}.ppo_mini_batch_size: a mini-batch of {rows} rows (times actor_rollout_ref.rollout.n) cannot"
                f" be spread over {config.world_size} ranks (trainer.nnodes x trainer.n_gpus_per_node)"
            )


@check
def betas_are_two(facts: Facts) -> Iterator[str]:
    """AdamW has two decay rates."""
    for section, optim in _optimizers(facts).items():
        if len(optim.betas) != 2:
            yield f"{section}.optim.betas: must be two numbers, got {optim.betas}"


@check
def schedule_settings_are_read(facts: Facts) -> Iterator[str]:
    """Warm-up is given in steps or as a share; only a falling schedule has a floor."""
    for section, optim in _optimizers(facts).items():
        if optim.lr_warmup_steps >= 0:
            because = f"when {section}.optim.lr_warmup_steps is given"
            yield from no_effect(facts, [f"{section}.optim.lr_warmup_steps_ratio"], because)
        if optim.lr_scheduler_type == "constant":
            because = f"with {section}.optim.lr_scheduler_type=constant"
            yield from no_effect(facts, [f"{section}.optim.min_lr_ratio"], because)

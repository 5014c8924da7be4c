"""Training: what an updater reads of `actor_rollout_ref.actor` or of `critic`. Invariant: what the critic leaves open
is the actor's, decided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_core.config.schema import OptimConfig, RunConfig
from verl_core.engine.distillation_term import distillation_term
from verl_core.engine.objective import Objective, PolicyObjective
from verl_core.engine.schedule import optimizer_steps
from verl_core.engine.supervised import SupervisedObjective
from verl_core.engine.value_objective import ValueObjective

Role = Literal["actor", "critic", "sft"]
_ACTOR = "actor_rollout_ref.actor"
SECTIONS: dict[Role, str] = {"actor": _ACTOR, "critic": "critic", "sft": _ACTOR}


@dataclass(frozen=True, slots=True)
class Training:
    """How one network is trained.

    Attributes:
        role: prefix of its metrics.
        objective: what is minimised.
        mini_batch_size: prompts (groups) per optimizer step.
        epochs: passes over the batch of a step.
        token_budget: tokens of a micro-batch on one rank, padding included.
        scale: divisor of seq-mean-token-sum-norm.
        horizon: optimizer steps of the run; the end of the schedule.
    """

    role: Role
    objective: Objective
    mini_batch_size: int
    epochs: int
    shuffle: bool
    token_budget: int
    loss_agg_mode: str
    scale: float
    grad_clip: float
    optim: OptimConfig
    horizon: int


def policy_training(config: RunConfig, total_training_steps: int) -> Training:
    """Of `actor_rollout_ref.actor`.

    Args:
        total_training_steps: global steps of the run.
    """
    actor, scale = config.actor_rollout_ref.actor, config.actor_rollout_ref.actor.loss_scale_factor
    scale = float(config.data.max_response_length) if scale is None else scale
    return Training(
        role="actor",
        objective=PolicyObjective(actor, config.algorithm.rollout_correction.effective, distillation_term(config)),
        mini_batch_size=actor.ppo_mini_batch_size,
        epochs=actor.ppo_epochs,
        shuffle=actor.shuffle,
        token_budget=actor.ppo_max_token_len_per_gpu,
        loss_agg_mode=actor.loss_agg_mode,
        scale=scale,
        grad_clip=actor.grad_clip,
        optim=actor.optim,
        horizon=optimizer_steps(
            total_training_steps - config.trainer.critic_warmup,
            actor.ppo_epochs,
            config.data.train_batch_size,
            actor.ppo_mini_batch_size,
        ),
    )


def critic_training(config: RunConfig, total_training_steps: int) -> Training:
    """Of `critic`.

    Args:
        total_training_steps: global steps of the run.
    """
    critic, settled = config.critic, config.critic.beside(config.actor_rollout_ref.actor)
    batch_size = config.data.train_batch_size
    return Training(
        role="critic",
        objective=ValueObjective(critic.cliprange_value, settled.loss_agg_mode),
        mini_batch_size=settled.mini_batch_size,
        epochs=settled.epochs,
        shuffle=settled.shuffle,
        token_budget=settled.token_budget,
        loss_agg_mode=settled.loss_agg_mode,
        scale=float(config.data.max_response_length),
        grad_clip=critic.grad_clip,
        optim=critic.optim,
        horizon=optimizer_steps(total_training_steps, settled.epochs, batch_size, settled.mini_batch_size),
    )


def supervised_training(config: RunConfig, total_training_steps: int) -> Training:
    """Of `actor_rollout_ref.actor`, as far as `sft.enable` reads it: a step is one mini-batch, seen once.

    Args:
        total_training_steps: global steps of the run.
    """
    actor = config.actor_rollout_ref.actor
    return Training(
        role="sft",
        objective=SupervisedObjective(actor.loss_agg_mode),
        mini_batch_size=config.data.train_batch_size,
        epochs=1,
        shuffle=False,
        token_budget=actor.ppo_max_token_len_per_gpu,
        loss_agg_mode=actor.loss_agg_mode,
        scale=float(config.sft.max_length if actor.loss_scale_factor is None else actor.loss_scale_factor),
        grad_clip=actor.grad_clip,
        optim=actor.optim,
        horizon=total_training_steps,
    )

"""The learning rate by hand."""

from __future__ import annotations

import math

import pytest

from verl_core.config.schema import OptimConfig, RunConfig
from verl_core.engine.schedule import Schedule
from verl_core.engine.training import critic_training, policy_training


def test_the_horizon_counts_optimizer_steps() -> None:
    config = RunConfig()
    config.data.train_batch_size = 32
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 8
    config.actor_rollout_ref.actor.ppo_epochs = 3
    assert policy_training(config, 10).horizon == critic_training(config, 10).horizon == 10 * 3 * 4
    config.critic.ppo_mini_batch_size, config.critic.ppo_epochs = 16, 1
    config.trainer.critic_warmup = 4  # steps in which only the critic takes optimizer steps
    assert policy_training(config, 10).horizon == 6 * 3 * 4
    assert critic_training(config, 10).horizon == 10 * 2


def test_warm_up_starts_above_zero_and_ends_at_the_full_rate() -> None:
    schedule = Schedule(OptimConfig(lr=1.0, lr_warmup_steps=4), horizon=100)
    assert [schedule.lr(done) for done in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_ratio_is_of_the_horizon_and_a_given_number_wins() -> None:
    assert Schedule(OptimConfig(lr_warmup_steps_ratio=0.1), horizon=50).warmup == 5
    assert Schedule(OptimConfig(lr_warmup_steps=0, lr_warmup_steps_ratio=0.1), horizon=50).warmup == 0


def test_cosine_by_hand() -> None:
    optim = OptimConfig(lr=2.0, lr_warmup_steps=10, lr_scheduler_type="cosine", min_lr_ratio=0.1)
    schedule = Schedule(optim, horizon=110)
    assert schedule.lr(10) == 2.0
    assert schedule.lr(60) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))  # half way: cos(pi/2) = 0
    assert schedule.lr(35) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5))))  # a quarter
    assert schedule.lr(110) == pytest.approx(0.2)
    assert schedule.lr(10_000) == pytest.approx(0.2)


def test_a_horizon_of_warm_up_only() -> None:
    assert Schedule(OptimConfig(lr=1.0, lr_warmup_steps=5, lr_scheduler_type="cosine"), horizon=5).lr(5) == 1.0

"""Token rewards, the KL controllers and the entropy: hand numbers."""

from __future__ import annotations

import math

import pytest
import torch

from verl_core.algorithms.entropy import entropy_from_logits
from verl_core.algorithms.kl_control import AdaptiveKL, FixedKL, build_kl_controller
from verl_core.algorithms.reward_kl import mean_kl, outcome_rewards, penalised_rewards
from verl_core.config.schema import KLControlConfig
from verl_core.errors import CheckpointError, ConfigError

NAN = float("nan")
MASK = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()  # padded; tool text in the middle; rejected


def test_the_score_lands_on_the_last_trainable_token() -> None:
    rewards = outcome_rewards(torch.tensor([2.0, 3.0, NAN]), MASK)
    assert rewards.tolist() == [[0, 2, 0], [0, 0, 3], [0, 0, 0]]


def test_the_penalty_is_paid_per_token() -> None:
    kl = torch.tensor([[1.0, 2.0, NAN], [4.0, NAN, 6.0], [NAN, NAN, NAN]])
    out = penalised_rewards(outcome_rewards(torch.tensor([2.0, 3.0, 9.0]), MASK), kl, MASK, beta=0.5)
    assert out.tolist() == [[-0.5, 1.0, 0], [-2.0, 0, 0.0], [0, 0, 0]]
    assert mean_kl(kl, MASK) == pytest.approx((1.5 + 5.0) / 2)
    assert mean_kl(kl, torch.zeros_like(MASK)) == 0.0


def test_the_adaptive_controller_by_hand() -> None:
    control = AdaptiveKL(kl_coef=0.1, target_kl=2.0, horizon=1000)
    control.update(current_kl=2.2, rows=100)  # error 0.1: 0.1 x (1 + 0.1 x 100 / 1000)
    assert control.value == pytest.approx(0.101)
    control.update(current_kl=50.0, rows=100)  # error clipped to 0.2
    assert control.value == pytest.approx(0.101 * 1.02)
    control.update(current_kl=0.0, rows=500)  # error clipped to -0.2
    assert control.value == pytest.approx(0.101 * 1.02 * 0.9)
    other = AdaptiveKL(kl_coef=5.0, target_kl=2.0, horizon=1000)
    other.load_state_dict(control.state_dict())
    assert other.value == control.value


def test_the_fixed_controller_never_moves_and_follows_the_configuration_after_a_load() -> None:
    control = FixedKL(0.25)
    control.update(1e9, 10_000)
    assert control.value == 0.25
    control.load_state_dict({"kl_coef": 0.5})
    assert control.value == 0.25


def test_building_and_refusing() -> None:
    assert isinstance(build_kl_controller(KLControlConfig()), FixedKL)
    assert isinstance(build_kl_controller(KLControlConfig(type="adaptive")), AdaptiveKL)
    with pytest.raises(ConfigError, match="horizon > 0"):
        build_kl_controller(KLControlConfig(type="adaptive", horizon=0))
    with pytest.raises(CheckpointError, match="kl_coef"):
        FixedKL(1.0).load_state_dict({"beta": 1.0})


def test_entropy_by_hand_with_an_impossible_token() -> None:
    # p = 1/4, 3/4 and one token that cannot be drawn; below, uniform over three.
    logits = torch.tensor([[math.log(1.0), math.log(3.0), -math.inf], [7.0, 7.0, 7.0]], requires_grad=True)
    entropy = entropy_from_logits(logits)
    expected = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), math.log(3)]
    assert entropy.tolist() == pytest.approx(expected, rel=1e-6)
    entropy.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_entropy_gradient_matches_finite_differences() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(entropy_from_logits, (logits,))

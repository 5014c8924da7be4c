"""Exact expectations: 3 tokens, horizon 3, all 27 sequences. What an estimator promises is compared with the true
quantity, obtained by differentiating the sum over all sequences; no sampling, so a bias of 1e-6 would show."""

from __future__ import annotations

import itertools

import pytest
import torch

from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs
from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.kl import kl_penalty
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs

VOCABULARY, HORIZON = 3, 3
SEQUENCES = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=HORIZON)))  # [27, 3]
EVERYWHERE = torch.ones(len(SEQUENCES), HORIZON).bool()


def weights(seed: int) -> torch.Tensor:
    """float64 logits [position, previous token or start, token]: a policy with memory of one token."""
    return torch.randn(HORIZON, VOCABULARY + 1, VOCABULARY, generator=torch.Generator().manual_seed(seed)).double()


def states() -> torch.Tensor:
    """int [27, 3]: the previous token, VOCABULARY at the start."""
    start = torch.full((len(SEQUENCES), 1), VOCABULARY)
    return torch.cat([start, SEQUENCES[:, :-1]], dim=1)


def log_probs(theta: torch.Tensor) -> torch.Tensor:
    """[27, 3] log pi(a_t | s_t)."""
    table = torch.log_softmax(theta, dim=-1)
    return table[torch.arange(HORIZON)[None, :], states(), SEQUENCES]


def probability(theta: torch.Tensor) -> torch.Tensor:
    """[27], sums to 1."""
    return log_probs(theta).sum(dim=1).exp()


def reward() -> torch.Tensor:
    return torch.randn(len(SEQUENCES), generator=torch.Generator().manual_seed(7)).double()


def gradient(scalar: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(scalar, theta)[0]


def test_the_enumeration_is_complete() -> None:
    assert probability(weights(0)).sum().item() == pytest.approx(1.0, abs=1e-12)


def test_on_policy_gradient_is_the_exact_policy_gradient() -> None:
    theta = weights(1).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    current = log_probs(theta)
    # The loss is linear in the advantage, so weighting a row by its probability is the expectation over rows.
    advantages = (probability(theta).detach() * reward())[:, None].expand(-1, HORIZON)
    loss = POLICY_LOSSES.get("vanilla")(PolicyLossInputs(current, current.detach(), advantages, EVERYWHERE))
    total = aggregate(loss.per_token, EVERYWHERE, "token-sum", Denominators.of(EVERYWHERE))
    torch.testing.assert_close(gradient(total, theta), -truth, rtol=1e-9, atol=1e-12)


def test_off_policy_surrogate_of_one_step_is_the_true_objective() -> None:
    # Horizon 1, clips out of reach: E_old[r A] = E_pi[A], in value and gradient.
    theta, old = weights(1)[0, VOCABULARY].requires_grad_(), weights(2)[0, VOCABULARY]
    payoff = torch.tensor([0.3, 1.7, 0.9]).double()  # positive: the dual clip plays no part
    rows = torch.log_softmax(theta, -1)[:, None]
    old_rows = torch.log_softmax(old, -1)[:, None]
    mask = torch.ones(VOCABULARY, 1).bool()
    weighted = (old_rows.exp()[:, 0] * payoff)[:, None]
    loss = POLICY_LOSSES.get("vanilla")(PolicyLossInputs(rows, old_rows, weighted, mask, 1.0, 1e9, 1e9))
    total = aggregate(loss.per_token, mask, "token-sum", Denominators.of(mask))
    truth = -(torch.softmax(theta, -1) * payoff).sum()
    torch.testing.assert_close(total, truth, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient(total, theta), gradient(truth, theta), rtol=1e-9, atol=1e-12)


def test_groups_of_two_without_deviation_give_half_the_exact_gradient() -> None:
    # E[sum_i (R_i - mean) grad log p_i] = (n - 1) grad J, and the mean over n rows makes (n - 1) / n: 1/2 for n = 2.
    theta = weights(3).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    first, second = (index.flatten() for index in torch.meshgrid(torch.arange(27), torch.arange(27), indexing="ij"))
    rows = torch.stack([first, second], dim=1).flatten()  # 729 groups of two rows
    token_rewards = torch.zeros(len(rows), HORIZON)
    token_rewards[:, -1] = reward()[rows].float()
    mask = torch.ones(len(rows), HORIZON).bool()
    group = torch.arange(729).repeat_interleave(2)
    estimate = ADVANTAGES.get("grpo")(AdvantageInputs(token_rewards, mask, group, norm_by_std=False)).advantages
    weight = (probability(theta)[first] * probability(theta)[second]).detach().repeat_interleave(2)
    current = log_probs(theta)[rows]
    loss = POLICY_LOSSES.get("vanilla")(
        PolicyLossInputs(current, current.detach(), estimate.double() * weight[:, None], mask)
    )
    expected_loss = loss.per_token.sum() / 2  # mean over the two rows of a group, expectation over groups
    torch.testing.assert_close(gradient(expected_loss, theta), -truth / 2, rtol=1e-4, atol=1e-7)


def expected_penalty(name: str, theta: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """E over sequences (their probabilities held fixed) of the sum of the token penalties."""
    penalty = kl_penalty(name, log_probs(theta), log_probs(ref), EVERYWHERE)
    return (probability(theta).detach()[:, None] * penalty).sum()


@pytest.mark.parametrize("name", ["kl", "k1", "kl+", "low_var_kl", "k3+"])
def test_unbiased_estimators_have_the_exact_kl_as_their_mean(name: str) -> None:
    theta, ref = weights(4), weights(4) + 0.3 * weights(5)
    p = probability(theta)
    truth = (p * (p.log() - probability(ref).log())).sum()
    torch.testing.assert_close(expected_penalty(name, theta, ref), truth, rtol=1e-9, atol=1e-12)


def state_kl(theta: torch.Tensor, ref: torch.Tensor, reverse: bool) -> torch.Tensor:
    """Sum over states, weighted with their fixed visiting probabilities, of KL(pi, ref) or KL(ref, pi) in that
    state.
    """
    table, ref_table = torch.log_softmax(theta, -1), torch.log_softmax(ref, -1)
    if reverse:
        per_state = (ref_table.exp() * (ref_table - table)).sum(-1)
    else:
        per_state = (table.exp() * (table - ref_table)).sum(-1)
    visited = per_state[torch.arange(HORIZON)[None, :], states()]
    return (probability(theta).detach()[:, None] * visited).sum()


@pytest.mark.parametrize("name", ["mse", "k2", "k2+", "kl+", "abs+", "low_var_kl+"])
def test_gradient_of_k2_and_of_every_plus_form_is_that_of_the_kl(name: str) -> None:
    theta, ref = weights(4).requires_grad_(), weights(4) + 0.3 * weights(5)
    truth = gradient(state_kl(theta, ref, reverse=False), theta)
    torch.testing.assert_close(gradient(expected_penalty(name, theta, ref), theta), truth, rtol=1e-9, atol=1e-12)


def test_gradient_of_k1_is_zero_and_of_k3_that_of_the_other_direction() -> None:
    theta, ref = weights(4).requires_grad_(), weights(4) + 0.3 * weights(5)
    assert gradient(expected_penalty("kl", theta, ref), theta).abs().max() < 1e-12
    truth = gradient(state_kl(theta, ref, reverse=True), theta)
    torch.testing.assert_close(gradient(expected_penalty("k3", theta, ref), theta), truth, rtol=1e-9, atol=1e-12)

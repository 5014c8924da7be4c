"""What an estimator promises about an expectation, against the exact one: 3 tokens, horizon 3, all sequences, and all
groups of two or three sequences where groups matter."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.algorithms.test_enumeration import (
    EVERYWHERE,
    HORIZON,
    SEQUENCES,
    VOCABULARY,
    gradient,
    log_probs,
    probability,
    reward,
    states,
    weights,
)
from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs

ROWS = len(SEQUENCES)


def token_rewards() -> torch.Tensor:
    """float64 [27, 3]: a reward for every (position, previous token, token)."""
    table = torch.randn(HORIZON, VOCABULARY + 1, VOCABULARY, generator=torch.Generator().manual_seed(11)).double()
    return table[torch.arange(HORIZON)[None, :], states(), SEQUENCES]


def expected_gradient(advantages: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """E[sum_t A_t grad log pi_t] over the 27 sequences."""
    weighted = probability(theta).detach()[:, None] * advantages.double()
    return gradient((weighted * log_probs(theta)).sum(), theta)


def groups(size: int) -> torch.Tensor:
    """int64 [27^size, size]: every group of sequences."""
    return torch.tensor(list(itertools.product(range(ROWS), repeat=size)))


def expected_group_gradient(name: str, outcome: torch.Tensor, theta: torch.Tensor, size: int) -> torch.Tensor:
    """E[1/n sum_i A_i grad log p_i] over all groups."""
    members = groups(size)
    rows = members.flatten()
    rewards = torch.zeros(len(rows), HORIZON)
    rewards[:, -1] = outcome[rows].float()
    index = torch.arange(len(members)).repeat_interleave(size)
    given = AdvantageInputs(rewards, torch.ones(len(rows), HORIZON).bool(), index)
    advantages = ADVANTAGES.get(name)(given).advantages[:, 0].double()
    chance = probability(theta).detach()[members].prod(dim=1).repeat_interleave(size)
    score = log_probs(theta).sum(dim=1)[rows]
    return gradient((chance * advantages * score).sum() / size, theta)


def test_rloo_is_unbiased() -> None:
    theta = weights(3).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    torch.testing.assert_close(expected_group_gradient("rloo", reward(), theta, 2), truth, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["opo"])
def test_a_baseline_that_holds_the_row_itself_shrinks_the_gradient_and_does_not_turn_it(name: str) -> None:
    # All lengths are equal here, so OPO's baseline is the group's mean: (n - 1) / n of the gradient.
    theta = weights(3).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    torch.testing.assert_close(expected_group_gradient(name, reward(), theta, 2), truth / 2, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [2, 3])
def test_maxrl_climbs_the_truncated_log_likelihood(size: int) -> None:
    theta = weights(3).requires_grad_()
    success = (reward() > 0.5).double()
    p = (probability(theta) * success).sum()
    truth = gradient(sum(-((1 - p) ** k) / k for k in range(1, size)), theta)
    torch.testing.assert_close(expected_group_gradient("maxrl", success, theta, size), truth, rtol=1e-4, atol=1e-7)


def test_gpg_is_the_centred_gradient_times_its_scale() -> None:
    # No reward is 0, so alpha is 1 and the baseline is the mean: half the gradient for n = 2.
    theta = weights(3).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    torch.testing.assert_close(expected_group_gradient("gpg", reward(), theta, 2), truth / 2, rtol=1e-4, atol=1e-7)


def one_row_groups(**fields: torch.Tensor | float) -> AdvantageInputs:
    return AdvantageInputs(token_rewards().float(), EVERYWHERE, torch.zeros(ROWS, dtype=torch.int64), **fields)  # type: ignore[arg-type]


def test_reward_to_go_is_unbiased() -> None:
    theta = weights(5).requires_grad_()
    truth = gradient((probability(theta)[:, None] * token_rewards()).sum(), theta)
    returns = ADVANTAGES.get("reinforce_plus_plus")(one_row_groups()).returns
    torch.testing.assert_close(expected_gradient(returns, theta), truth, rtol=1e-4, atol=1e-6)


def test_remax_is_unbiased_whatever_the_greedy_reward() -> None:
    theta = weights(5).requires_grad_()
    truth = gradient((probability(theta)[:, None] * token_rewards()).sum(), theta)
    advantages = ADVANTAGES.get("remax")(one_row_groups(greedy_rewards=torch.full((ROWS,), 0.7))).advantages
    torch.testing.assert_close(expected_gradient(advantages, theta), truth, rtol=1e-4, atol=1e-6)


def state_values(theta: torch.Tensor) -> torch.Tensor:
    """float64 [27, 3]: the exact value of the state before each token, by conditional expectation."""
    p, ahead = probability(theta).detach(), token_rewards().flip(1).cumsum(1).flip(1)
    values = torch.zeros(ROWS, HORIZON).double()
    for t in range(HORIZON):
        prefixes = SEQUENCES[:, :t]
        for row in range(ROWS):
            same = (prefixes == prefixes[row]).all(dim=1)
            values[row, t] = (p[same] * ahead[same, t]).sum() / p[same].sum()
    return values


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_gae_with_exact_values_is_unbiased_for_every_lambda(lam: float) -> None:
    theta = weights(5).requires_grad_()
    truth = gradient((probability(theta)[:, None] * token_rewards()).sum(), theta)
    values = state_values(theta).float()
    raw = ADVANTAGES.get("gae")(one_row_groups(values=values, lam=lam)).returns - values  # before whitening
    torch.testing.assert_close(expected_gradient(raw, theta), truth, rtol=1e-4, atol=1e-6)


def test_gae_with_wrong_values_is_unbiased_for_lambda_one_only() -> None:
    theta = weights(5).requires_grad_()
    truth = gradient((probability(theta)[:, None] * token_rewards()).sum(), theta)
    wrong = torch.randn(HORIZON, VOCABULARY + 1, generator=torch.Generator().manual_seed(2))
    values = wrong[torch.arange(HORIZON)[None, :], states()]
    for lam, unbiased in ((1.0, True), (0.5, False)):
        raw = ADVANTAGES.get("gae")(one_row_groups(values=values, lam=lam)).returns - values
        error = (expected_gradient(raw, theta) - truth).abs().max()
        assert bool(error < 1e-5) == unbiased


def test_the_weight_of_the_token_baseline_is_the_squared_norm_of_the_logit_gradient() -> None:
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    p = torch.softmax(logits, -1)
    for token in range(3):
        slope = torch.autograd.grad(torch.log_softmax(logits, -1)[token], logits, retain_graph=True)[0]
        assert slope.square().sum().item() == pytest.approx((1 - 2 * p[token] + p.square().sum()).item(), rel=1e-12)

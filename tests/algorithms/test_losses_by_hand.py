"""The losses at hand numbers on both sides of every boundary, with the gradient there; the marks of clip_cov and
kl_cov; the expectations that a loss promises."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.algorithms.test_enumeration import EVERYWHERE, gradient, log_probs, probability, reward, weights
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs
from verl_core.algorithms.policy_losses.covariance import MARKINGS, MarkInputs
from verl_core.errors import ConfigError


def run(
    name: str, p: float, old: float, advantage: float, marked: bool = False
) -> tuple[float, float, dict[str, float]]:
    """One token of probability p (old: `old`), clips 0.2 and 0.3, c = 2: loss, d loss / d log p, metrics."""
    current = torch.tensor([[math.log(p)]], requires_grad=True)
    given = PolicyLossInputs(
        current, torch.tensor([[math.log(old)]]), torch.tensor([[advantage]]), torch.ones(1, 1).bool(), 0.2, 0.3, 2.0,
        tau_pos=1.0, tau_neg=2.0, dro_beta=0.5, kl_coef=0.1, marked=torch.tensor([[marked]]),
    )  # fmt: skip
    out = POLICY_LOSSES.get(name)(given)
    out.per_token.sum().backward()
    assert current.grad is not None
    return out.per_token.item(), float(current.grad), {key: float(value) for key, value in out.sums.items()}


LOG = math.log


@pytest.mark.parametrize(
    ("name", "p", "old", "advantage", "loss", "slope"),
    [
        # gspo of one token is the clipped surrogate without the second clip.
        ("gspo", 0.26, 0.2, 2.0, -2.6, -2.6),  # r = 1.3: at the boundary, still free
        ("gspo", 0.262, 0.2, 2.0, -2.6, 0.0),
        ("gspo", 0.162, 0.2, -2.0, 1.62, 1.62),
        ("gspo", 0.158, 0.2, -2.0, 1.6, 0.0),
        ("gspo", 0.8, 0.2, -2.0, 8.0, 8.0),  # no second clip
        # sapo: 4 sigmoid(r - 1) at r = 1 is 2, slope A r
        ("sapo", 0.2, 0.2, 3.0, -6.0, -3.0),
        ("sapo", 0.2, 0.2, -3.0, 3.0, 3.0),  # tau 2: (4 / 2) / 2 = 1
        ("sapo", 0.4, 0.2, 1.0, -4 / (1 + math.exp(-1)), -4 * math.exp(-1) / (1 + math.exp(-1)) ** 2 * 2),
        ("gpg", 0.5, 0.1, 3.0, -3 * LOG(0.5), -3.0),
        ("cispo", 0.25, 0.2, 2.0, -1.25 * 2 * LOG(0.25), -2.5),  # inside
        ("cispo", 0.4, 0.2, 2.0, -1.3 * 2 * LOG(0.4), -2.6),  # clipped, and still a gradient
        ("cispo", 0.1, 0.2, 2.0, -0.8 * 2 * LOG(0.1), -1.6),
        ("dro", 0.4, 0.2, 2.0, -2 * LOG(0.4) + 0.25 * LOG(2) ** 2, -2 + 0.5 * LOG(2)),
        # geo_mean: bounds on the log-ratio: 0.3 above for A > 0, 0.2 below for A < 0.
        ("geo_mean", 0.2 * math.exp(0.29), 0.2, 2.0, -2 * math.exp(0.29), -2 * math.exp(0.29)),
        ("geo_mean", 0.2 * math.exp(0.31), 0.2, 2.0, -2 * math.exp(0.3), 0.0),
        ("geo_mean", 0.2 * math.exp(-0.9), 0.2, 2.0, -2 * math.exp(-0.9), -2 * math.exp(-0.9)),
        ("geo_mean", 0.2 * math.exp(-0.21), 0.2, -2.0, 2 * math.exp(-0.2), 0.0),
        ("geo_mean", 0.2 * math.exp(0.9), 0.2, -2.0, 2 * math.exp(0.9), 2 * math.exp(0.9)),
        ("geo_mean", 0.2 * math.exp(89), 0.2, -2.0, 2 * math.exp(20), 0.0),  # the cap on l
        # dppo_tv: p may rise by 0.3 (A > 0) and fall by 0.2 (A < 0); the ratio is capped at 2.
        ("dppo_tv", 0.49, 0.2, 1.0, -2 * LOG(0.49), -2.0),  # r = 2.45, capped
        ("dppo_tv", 0.51, 0.2, 1.0, 0.0, 0.0),
        ("dppo_tv", 0.31, 0.5, -1.0, 0.62 * LOG(0.31), 0.62),
        ("dppo_tv", 0.29, 0.5, -1.0, 0.0, 0.0),
        ("dppo_tv", 0.1, 0.5, 1.0, -0.2 * LOG(0.1), -0.2),  # far away, but on the way back
        ("dppo_tv", 0.9, 0.5, -1.0, 1.8 * LOG(0.9), 1.8),
        # dppo_kl from 0.5: D(0.83) = 0.5 ln(.5/.83) + .5 ln(.5/.17) = 0.2859 <= 0.3 < D(0.85) = 0.3367
        ("dppo_kl", 0.83, 0.5, 1.0, -1.66 * LOG(0.83), -1.66),
        ("dppo_kl", 0.85, 0.5, 1.0, 0.0, 0.0),
        # below: D(0.22) = 0.1881 <= 0.2 < D(0.2) = 0.2231
        ("dppo_kl", 0.22, 0.5, -1.0, 0.44 * LOG(0.22), 0.44),
        ("dppo_kl", 0.2, 0.5, -1.0, 0.0, 0.0),
        ("dppo_kl", 0.1, 0.5, 1.0, -0.2 * LOG(0.1), -0.2),
        ("clip_cov", 0.262, 0.2, 2.0, -2.6, 0.0),
        ("clip_cov", 0.25, 0.2, 2.0, -2.5, -2.5),
        ("kl_cov", 0.4, 0.2, 2.0, -4.0, -4.0),  # no clip at all
    ],
)
def test_boundaries(name: str, p: float, old: float, advantage: float, loss: float, slope: float) -> None:
    got, gradient_, _ = run(name, p, old, advantage)
    assert got == pytest.approx(loss, rel=2e-5, abs=1e-6)
    assert gradient_ == pytest.approx(slope, rel=2e-5, abs=1e-6)


def test_marked_tokens() -> None:
    assert run("clip_cov", 0.25, 0.2, 2.0, marked=True)[:2] == (0.0, 0.0)
    loss, slope, metrics = run("kl_cov", 0.4, 0.2, 2.0, marked=True)
    assert loss == pytest.approx(-4 + 0.1 * LOG(2), rel=1e-5)
    assert slope == pytest.approx(-4 + 0.1, rel=1e-5)
    assert metrics["pg_markfrac"] == 1.0
    assert run("kl_cov", 0.1, 0.2, 2.0, marked=True)[1] == pytest.approx(-1 - 0.1, rel=1e-5)  # |l| falls as l rises


@pytest.mark.parametrize(
    ("name", "p", "advantage", "clipped"),
    [
        ("gspo", 0.262, 2.0, 1), ("gspo", 0.25, 2.0, 0), ("cispo", 0.4, 2.0, 1), ("cispo", 0.25, 2.0, 0),
        ("geo_mean", 0.4, 2.0, 1), ("geo_mean", 0.4, -2.0, 0), ("dppo_tv", 0.51, 1.0, 1), ("dppo_tv", 0.49, 1.0, 0),
    ],
)  # fmt: skip
def test_clip_fractions(name: str, p: float, advantage: float, clipped: int) -> None:
    assert run(name, p, 0.2, advantage)[2]["pg_clipfrac"] == clipped


def test_gspo_clips_the_whole_response_by_its_mean() -> None:
    # log-ratios 0.5 and 0: mean 0.25, s = 1.284 < 1.3: both tokens free. With 0.6: s = 1.35: neither.
    for first, free in ((0.5, True), (0.6, False)):
        current = torch.tensor([[first - 1.0, -1.0]], requires_grad=True)
        out = POLICY_LOSSES.get("gspo")(
            PolicyLossInputs(current, torch.full((1, 2), -1.0), torch.ones(1, 2), torch.ones(1, 2).bool(), 0.2, 0.3)
        )
        out.per_token.sum().backward()
        assert current.grad is not None
        assert bool(current.grad.any()) == free


def test_what_a_loss_lacks_is_named() -> None:
    one = torch.zeros(1, 1)
    bare = PolicyLossInputs(one, one, one, one.bool())
    with pytest.raises(ConfigError, match=r"dro_beta: must be greater than 0, got None"):
        POLICY_LOSSES.get("dro")(bare)
    with pytest.raises(ValueError, match="needs marked"):
        POLICY_LOSSES.get("kl_cov")(bare)


def test_marks_by_hand() -> None:
    # log-probs -3, -2, -1, 0 (mean -1.5), advantages 0, 0, 4, 4 (mean 2): covariances 3, 1, 1, 3.
    given = MarkInputs(torch.tensor([-3.0, -2.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 4.0, 4.0]), ratio=0.5)
    assert given.covariance.tolist() == [3.0, 1.0, 1.0, 3.0]
    assert MARKINGS.get("kl_cov")(given).tolist() == [True, False, False, True]
    # Bounds are open: 1 is not above 1. Both candidates are taken whatever the seed.
    assert MARKINGS.get("clip_cov")(given).tolist() == [True, False, False, True]


def test_clip_cov_draws_evenly_and_at_least_one() -> None:
    log_probs, advantages = torch.tensor([-3.0, -2.0, -1.0, 0.0]), torch.tensor([0.0, 0.0, 4.0, 4.0])
    drawn = torch.zeros(4)
    for seed in range(400):
        marks = MARKINGS.get("clip_cov")(MarkInputs(log_probs, advantages, ratio=0.01, seed=seed))
        assert marks.sum() == 1  # 0.01 x 4 tokens is less than one
        drawn += marks
    assert drawn[1] == drawn[2] == 0
    assert 160 < drawn[0] < 240  # 200 expected, standard deviation 10


def test_clip_cov_may_find_no_candidate() -> None:
    given = MarkInputs(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]), ratio=0.5)
    assert not MARKINGS.get("clip_cov")(given).any()


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES.names() if name not in ("clip_cov", "kl_cov")])
def test_on_policy_every_loss_has_the_exact_policy_gradient(name: str) -> None:
    """At pi = pi_old no bound is reached: E[gradient] is that of the expected reward, for sequence losses after the
    mean over the row's tokens (all rows have 3)."""
    theta = weights(1).requires_grad_()
    truth = gradient((probability(theta) * reward()).sum(), theta)
    current = log_probs(theta)
    advantages = reward()[:, None].expand(-1, 3)
    given = PolicyLossInputs(current, current.detach(), advantages, EVERYWHERE, dro_beta=0.5, clip_c=3.0)
    expected_loss = (probability(theta).detach()[:, None] * POLICY_LOSSES.get(name)(given).per_token).sum()
    torch.testing.assert_close(gradient(expected_loss, theta), -truth, rtol=1e-6, atol=1e-9)


def test_off_policy_cispo_without_bounds_is_the_importance_weighted_gradient() -> None:
    """One step, E_old[r A grad log pi] = grad E_pi[A]."""
    theta, old = weights(1)[0, 3].clone().requires_grad_(), weights(2)[0, 3]
    payoff = torch.tensor([0.3, -1.7, 0.9]).double()
    rows, old_rows = torch.log_softmax(theta, -1)[:, None], torch.log_softmax(old, -1)[:, None]
    given = PolicyLossInputs(rows, old_rows, payoff[:, None], torch.ones(3, 1).bool(), 1.0, 1e9)
    expected_loss = (old_rows.exp() * POLICY_LOSSES.get("cispo")(given).per_token).sum()
    truth = gradient((torch.softmax(theta, -1) * payoff).sum(), theta)
    torch.testing.assert_close(gradient(expected_loss, theta), -truth, rtol=1e-9, atol=1e-12)


def test_dppo_bounds_are_distances_of_two_way_splits() -> None:
    for p, q in itertools.product([0.1, 0.35, 0.8], repeat=2):
        two_way = torch.distributions.kl_divergence(
            torch.distributions.Bernoulli(torch.tensor(q)), torch.distributions.Bernoulli(torch.tensor(p))
        )
        for factor, dropped in ((0.99, 1.0), (1.01, 0.0)):
            bound = float(two_way) * factor
            given = PolicyLossInputs(
                torch.tensor([[LOG(p)]]),
                torch.tensor([[LOG(q)]]),
                torch.ones(1, 1),
                torch.ones(1, 1).bool(),
                bound,
                bound,
            )
            if p > q:
                assert float(POLICY_LOSSES.get("dppo_kl")(given).sums["pg_clipfrac"]) == dropped


def test_what_clip_cov_leaves_out_is_not_clipped() -> None:
    assert run("clip_cov", 0.4, 0.2, 2.0)[2]["pg_clipfrac"] == 1.0
    assert run("clip_cov", 0.4, 0.2, 2.0, marked=True)[2]["pg_clipfrac"] == 0.0


def test_geo_mean_of_a_wild_row_whose_advantages_cancel_is_zero() -> None:
    current = torch.tensor([[200.0, 0.0]], requires_grad=True)
    given = PolicyLossInputs(current, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool())
    out = POLICY_LOSSES.get("geo_mean")(given).per_token
    out.sum().backward()
    assert current.grad is not None
    assert (out.tolist(), current.grad.tolist()) == ([[0.0, 0.0]], [[0.0, 0.0]])


@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES.names() if name not in ("gpg", "clip_cov", "kl_cov")])
def test_an_old_log_prob_that_is_no_number_shows_in_the_loss(name: str) -> None:
    assert math.isnan(run(name, 0.2, math.nan, 1.0)[0])

"""The clipped loss at hand numbers on both sides of every boundary, and its gradient there."""

from __future__ import annotations

import math

import pytest
import torch

from verl_core.algorithms.aggregation import TokenLoss
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs

NAN = float("nan")
vanilla = POLICY_LOSSES.get("vanilla")


def run(ratio: float, advantage: float) -> tuple[TokenLoss, float]:
    """Loss of one token with clip 0.2 below, 0.3 above, dual clip 3, and d loss / d log_prob."""
    log_probs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    out = vanilla(
        PolicyLossInputs(
            log_probs, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1).bool(), 0.2, 0.3, 3.0
        )
    )
    out.per_token.sum().backward()
    assert log_probs.grad is not None
    return out, float(log_probs.grad)


# d loss / d log pi is -A r where the free branch is in force, and 0 where a clip is.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "lower"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.29, 2.0, -2.58, -2.58, 0, 0),  # inside the upper boundary
        (1.31, 2.0, -2.6, 0.0, 1, 0),  # above it: -2 x 1.3
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # A > 0 and a small ratio: never clipped from below
        (0.81, -2.0, 1.62, 1.62, 0, 0),  # inside the lower boundary
        (0.79, -2.0, 1.6, 0.0, 1, 0),  # below it: 2 x 0.8
        (2.9, -2.0, 5.8, 5.8, 0, 0),  # A < 0 and a big ratio: free up to c
        (3.1, -2.0, 6.0, 0.0, 0, 1),  # above c: 2 x 3
        (3.1, 0.0, 0.0, 0.0, 0, 0),
    ],
)
def test_regions(ratio: float, advantage: float, loss: float, gradient: float, clipped: int, lower: int) -> None:
    out, slope = run(ratio, advantage)
    assert out.per_token.item() == pytest.approx(loss, rel=1e-5)
    assert slope == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert (out.sums["pg_clipfrac"].item(), out.sums["pg_clipfrac_lower"].item()) == (clipped, lower)
    assert out.sums["ppo_kl"].item() == pytest.approx(-math.log(ratio), rel=1e-5, abs=1e-7)


def test_the_log_ratio_is_held_within_twenty() -> None:
    log_probs = torch.tensor([[0.0, -300.0]], requires_grad=True)
    old = torch.tensor([[-300.0, 0.0]])
    out = vanilla(PolicyLossInputs(log_probs, old, torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2).bool()))
    assert out.per_token[0, 0].item() == 3.0  # dual clip bounds e^20
    assert out.per_token[0, 1].item() == pytest.approx(-math.exp(-20))
    assert torch.isfinite(out.per_token).all()
    assert out.sums["ppo_kl"].item() == 0.0  # -(20 - 20)


def test_masked_cells_reach_neither_loss_nor_gradient_nor_metrics() -> None:
    log_probs = torch.tensor([[0.1, NAN], [0.2, 0.3]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, False]])
    old = torch.tensor([[0.0, NAN], [0.0, float("inf")]])
    out = vanilla(PolicyLossInputs(log_probs, old, torch.tensor([[1.0, NAN], [-1.0, 1e9]]), mask))
    out.per_token.sum().backward()
    assert log_probs.grad is not None
    assert out.per_token[:, 1].tolist() == [0.0, 0.0]
    assert log_probs.grad[:, 1].tolist() == [0.0, 0.0]
    # -1 e^0.1 + 1 e^0.2 (1.2214: inside, since A < 0 is clipped from below only)
    assert out.per_token.sum().item() == pytest.approx(-math.exp(0.1) + math.exp(0.2), rel=1e-5)
    assert {name: float(value) for name, value in out.sums.items()} == pytest.approx(
        {"pg_clipfrac": 0.0, "pg_clipfrac_lower": 0.0, "ppo_kl": -0.3}
    )

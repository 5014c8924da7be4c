"""The Bradley-Terry loss against its formula by hand, and what it must not see."""

from __future__ import annotations

import math

import pytest
import torch

from verl_core.algorithms.bradley_terry import bradley_terry

EVERY = torch.tensor([True, True, True])


def literal(chosen: list[float], rejected: list[float], margin: list[float]) -> list[float]:
    """-log of the probability that the chosen one wins."""
    rows = zip(chosen, rejected, margin, strict=True)
    return [-math.log(math.exp(c - m) / (math.exp(c - m) + math.exp(r))) for c, r, m in rows]


def test_values_by_hand() -> None:
    """Equal scores: log 2. One nat apart: log(1 + 1/e). A margin of the same size takes it back to log 2."""
    chosen, rejected = torch.tensor([0.5, 2.0, 2.0]), torch.tensor([0.5, 1.0, 1.0])
    loss = bradley_terry(chosen, rejected, torch.tensor([0.0, 0.0, 1.0]), EVERY)
    assert loss.tolist() == pytest.approx([math.log(2), math.log(1 + 1 / math.e), math.log(2)], abs=1e-6)


def test_the_formula_row_by_row() -> None:
    torch.manual_seed(0)
    chosen, rejected, margin = torch.randn(3, 64)
    margin = margin.abs()
    found = bradley_terry(chosen, rejected, margin, torch.ones(64, dtype=torch.bool))
    assert found.tolist() == pytest.approx(literal(chosen.tolist(), rejected.tolist(), margin.tolist()), abs=1e-5)


def test_the_gradient_is_the_chance_of_being_wrong() -> None:
    """d loss / d chosen = -(1 - P), d loss / d rejected = 1 - P."""
    chosen, rejected = torch.tensor([1.0], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    bradley_terry(chosen, rejected, torch.zeros(1), torch.tensor([True])).sum().backward()
    wrong = 1 - 1 / (1 + math.exp(-1.0))
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-wrong, wrong), abs=1e-6)


def test_masked_pairs_reach_neither_value_nor_gradient() -> None:
    nan, inf = float("nan"), float("inf")
    chosen = torch.tensor([1.0, nan, inf], requires_grad=True)
    rejected = torch.tensor([0.0, nan, inf], requires_grad=True)
    loss = bradley_terry(chosen, rejected, torch.tensor([0.0, nan, nan]), torch.tensor([True, False, False]))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([math.log(1 + 1 / math.e), 0.0, 0.0], abs=1e-6)
    assert chosen.grad is not None
    assert chosen.grad[1:].tolist() == [0.0, 0.0]


def test_far_apart_scores_stay_finite() -> None:
    loss = bradley_terry(torch.tensor([1e4, -1e4]), torch.tensor([0.0, 0.0]), torch.zeros(2), EVERY[:2])
    assert loss.tolist() == [0.0, 1e4]

"""The critic's loss against a literal loop and at hand numbers on both sides of each bound; what must not change it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate
from verl_core.algorithms.value_loss import explained_variance, value_loss

NAN = math.nan
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # values, old values, returns, mask


@st.composite
def micro_batches(draw: st.DrawFn) -> Tensors:
    """Values on both sides of a clip of 0.5; NaN under the mask."""
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.4, 0.8, 1.0]))
    values, old, returns = (torch.where(mask, torch.randn(rows, width, generator=generator), NAN) for _ in range(3))
    return values.requires_grad_(), old, returns, mask


def literal(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float) -> Tensors:
    """(loss, d loss / d V, clipped, mask), a cell at a time, in plain numbers."""
    loss, slope, clipped = torch.zeros(mask.shape), torch.zeros(mask.shape), torch.zeros(mask.shape)
    for row in range(mask.shape[0]):
        for step in range(mask.shape[1]):
            if not mask[row, step]:
                continue
            v, before, target = (float(one[row, step]) for one in (values.detach(), old, returns))
            held = min(max(v, before - clip), before + clip)
            loss[row, step] = 0.5 * max((v - target) ** 2, (held - target) ** 2)
            clipped[row, step] = (held - target) ** 2 > (v - target) ** 2
            slope[row, step] = 0.0 if clipped[row, step] else v - target
    return loss, slope, clipped, mask


@given(micro_batches(), st.sampled_from([0.1, 0.5, 2.0]))
def test_it_is_the_literal_loop(batch: Tensors, clip: float) -> None:
    values, _, _, mask = batch
    loss, slope, clipped, _ = literal(*batch, clip)
    got = value_loss(*batch, clip)
    torch.testing.assert_close(got.per_token, loss, rtol=1e-5, atol=1e-6)
    got.per_token.sum().backward()
    torch.testing.assert_close(values.grad, slope, rtol=1e-5, atol=1e-6)
    assert float(got.sums["vf_clipfrac"]) == float(clipped.sum())
    assert float(got.sums["vpred_mean"]) == pytest.approx(float(values.detach()[mask].sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope", "clipped"),
    [  # the old value is 1, the clip 0.5: the value is free between 0.5 and 1.5
        (1.5, 3.0, 1.125, -1.5, 0),  # at the bound: (1.5 - 3)^2 / 2
        (1.75, 3.0, 1.125, 0.0, 1),  # beyond it towards the return: held at 1.5, no gradient
        (0.5, -1.0, 1.125, 1.5, 0),
        (0.25, -1.0, 1.125, 0.0, 1),  # the same downwards
        (1.75, 1.25, 0.125, 0.5, 0),  # past its return: the free branch is the larger one and pulls it back
        (2.0, 0.0, 2.0, 2.0, 0),  # moved away from its return: pulled back as if there were no clip
        (0.0, 2.0, 2.0, -2.0, 0),
    ],
)
def test_by_hand_at_the_clip(value: float, target: float, loss: float, slope: float, clipped: int) -> None:
    current = torch.tensor([[value]], requires_grad=True)
    got = value_loss(current, torch.tensor([[1.0]]), torch.tensor([[target]]), torch.ones(1, 1).bool(), 0.5)
    got.per_token.sum().backward()
    assert current.grad is not None
    assert (got.per_token.item(), current.grad.item(), got.sums["vf_clipfrac"].item()) == (loss, slope, clipped)


@given(micro_batches(), st.sampled_from(AGGREGATIONS.names()))
def test_micro_batches_add_up_under_every_aggregation(batch: Tensors, mode: str) -> None:
    whole = Denominators.of(batch[3], scale=7.0)
    together = aggregate(value_loss(*batch, 0.5).per_token, batch[3], mode, whole)
    pieces = [[one[row : row + 1] for one in batch] for row in range(len(batch[3]))]
    apart = [aggregate(value_loss(*piece, 0.5).per_token, piece[3], mode, whole) for piece in pieces]  # type: ignore[arg-type]
    torch.testing.assert_close(torch.stack(apart).sum(), together, rtol=1e-5, atol=1e-6)


def test_explained_variance_by_hand() -> None:
    returns, mask = torch.tensor([0.0, 1.0, 2.0, NAN]), torch.tensor([True, True, True, False])
    # Var(R) = 1. V = R / 2: R - V = 0, 0.5, 1 with variance 0.25. A constant explains nothing; 2 - R makes it worse.
    assert explained_variance(torch.tensor([0.0, 0.5, 1.0, NAN]), returns, mask) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([5.0, 6.0, 7.0, NAN]), returns, mask) == 1.0  # an offset is not variance
    assert explained_variance(torch.full((4,), 3.0), returns, mask) == 0.0
    assert explained_variance(torch.tensor([2.0, 1.0, 0.0, NAN]), returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones(4), mask) is None

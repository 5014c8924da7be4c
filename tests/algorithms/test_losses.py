"""Every policy loss against a literal loop of its formula, in value and gradient, under every aggregation; and what
must not change its result."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.literal_losses import LITERAL
from verl_core.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs

NAN = math.nan
EVERY = POLICY_LOSSES.names()
CELLS = ("log_probs", "old_log_probs", "advantages", "mask", "marked")


@st.composite
def micro_batches(draw: st.DrawFn) -> PolicyLossInputs:
    """Log-probs far enough apart to reach every region; NaN under the mask."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    distance = draw(st.sampled_from([0.1, 1.0]))
    mask = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.4, 0.8, 1.0]))
    old = -torch.rand(rows, width, generator=generator) * 2 - 0.05
    new = (old + distance * torch.randn(rows, width, generator=generator)).clamp(max=-0.01)
    per_row = draw(st.booleans())
    advantages = torch.randn(rows, 1 if per_row else width, generator=generator).expand(rows, width).clone()
    advantages[torch.rand(rows, width, generator=generator) < 0.1] = 0.0
    return PolicyLossInputs(
        log_probs=torch.where(mask, new, NAN).requires_grad_(),
        old_log_probs=torch.where(mask, old, NAN),
        advantages=torch.where(mask, advantages, NAN),
        mask=mask,
        clip_low=draw(st.sampled_from([0.05, 0.2])),
        clip_high=draw(st.sampled_from([0.05, 0.3])),
        clip_c=draw(st.sampled_from([1.5, 3.0])),
        tau_pos=0.8,
        tau_neg=1.2,
        dro_beta=0.5,
        kl_coef=0.3,
        marked=torch.rand(rows, width, generator=generator) < 0.3,
    )


def slope(total: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(total, of)[0] if total.requires_grad else torch.zeros_like(of)


def literal_total(given_: PolicyLossInputs, name: str, mode: str, whole: Denominators) -> torch.Tensor:
    """Aggregated by hand: sums over a dict of cells."""
    cells = LITERAL[name](given_)
    total = given_.log_probs[given_.mask].sum() * 0
    for (row, _), loss in cells.items():
        length = sum(1 for other, _ in cells if other == row)
        total = (
            total
            + loss
            * {
                "token-mean": 1 / max(1, whole.tokens),
                "token-sum": 1.0,
                "seq-mean-token-sum": 1 / max(1, whole.rows),
                "seq-mean-token-mean": 1 / max(1, whole.rows) / length,
                "seq-mean-token-sum-norm": 1 / max(1, whole.rows) / whole.scale,
            }[mode]
        )
    return total


def test_every_loss_has_a_literal_twin() -> None:
    assert set(LITERAL) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=40, deadline=None)
@given(batch=micro_batches(), mode=st.sampled_from(AGGREGATIONS.names()))
def test_equals_the_literal_loop(name: str, mode: str, batch: PolicyLossInputs) -> None:
    whole = Denominators.of(batch.mask, scale=7.0)
    expected = literal_total(batch, name, mode, whole)
    got = aggregate(POLICY_LOSSES.get(name)(batch).per_token, batch.mask, mode, whole)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    want = torch.where(batch.mask, slope(expected, batch.log_probs), 0.0)
    have = slope(got, batch.log_probs)
    if name == "gspo":  # the token form spreads a row's gradient as the row form does only if A is one per row
        want, have = row_gradients(batch, name, mode, whole)
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert not have[~batch.mask].any()


def row_gradients(
    batch: PolicyLossInputs, name: str, mode: str, whole: Denominators
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both gradients with the row's first trainable advantage on all of its tokens."""
    first = torch.where(batch.mask, batch.advantages, 0.0)[:, :1].expand_as(batch.mask)
    flat = dataclasses.replace(batch, advantages=first)
    want = slope(literal_total(flat, name, mode, whole), flat.log_probs)
    got = aggregate(POLICY_LOSSES.get(name)(flat).per_token, flat.mask, mode, whole)
    return torch.where(flat.mask, want, 0.0), slope(got, flat.log_probs)


def part(batch: PolicyLossInputs, rows: torch.Tensor, extra: int) -> PolicyLossInputs:
    """Some rows, padded wider with NaN."""
    changed = {}
    for name in CELLS:
        value = getattr(batch, name)[rows]
        fill = False if value.dtype == torch.bool else NAN
        changed[name] = torch.cat([value, torch.full((len(rows), extra), fill, dtype=value.dtype)], dim=1)
    return dataclasses.replace(batch, **changed)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=30, deadline=None)
@given(batch=micro_batches(), mode=st.sampled_from(AGGREGATIONS.names()), seed=st.integers(0, 99))
def test_splits_order_and_padding_change_nothing(name: str, mode: str, batch: PolicyLossInputs, seed: int) -> None:
    loss, whole = POLICY_LOSSES.get(name), Denominators.of(batch.mask, scale=7.0)
    total = aggregate(loss(batch).per_token, batch.mask, mode, whole)
    order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(seed))
    pieces = [part(batch, rows, extra) for extra, rows in enumerate(order.split(2))]
    parts = torch.stack([aggregate(loss(piece).per_token, piece.mask, mode, whole) for piece in pieces]).sum()
    torch.testing.assert_close(parts, total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slope(parts, batch.log_probs), slope(total, batch.log_probs), rtol=1e-5, atol=1e-6)
    for metric, value in loss(batch).sums.items():
        assert not value.requires_grad
        split = sum(float(loss(piece).sums[metric]) for piece in pieces)
        assert split == pytest.approx(float(value), rel=1e-5, abs=1e-5)

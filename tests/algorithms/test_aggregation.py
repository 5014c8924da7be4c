"""The five modes: hand numbers, and any split adds up to the whole in value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.algorithms.aggregation import AGGREGATIONS, Denominators, aggregate
from verl_core.errors import ConfigError

NAN = float("nan")

VALUES = torch.tensor([[1.0, 2.0, NAN], [4.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 1.0, 4.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 13 / 6),  # (3 + 4 + 6) / 6 tokens
        ("token-sum", 13.0),
        ("seq-mean-token-sum", 13 / 3),  # 3 live rows
        ("seq-mean-token-mean", (1.5 + 4 + 2) / 3),
        ("seq-mean-token-sum-norm", 13 / 3 / 8),  # scale 8
    ],
)
def test_hand_numbers(mode: str, expected: float) -> None:
    assert aggregate(VALUES, MASK, mode, Denominators.of(MASK, scale=8.0)).item() == pytest.approx(expected)


def test_denominators_count_live_tokens_and_rows() -> None:
    assert Denominators.of(MASK) == Denominators(tokens=6, rows=3)


@pytest.mark.parametrize("mode", AGGREGATIONS.names())
def test_nothing_to_average_is_zero_and_not_nan(mode: str) -> None:
    empty = torch.zeros(2, 2).bool()
    assert aggregate(torch.full((2, 2), NAN), empty, mode, Denominators.of(empty)).item() == 0.0


def test_unknown_mode() -> None:
    with pytest.raises(ConfigError, match=r"loss_agg_mode='token-men'.*Did you mean 'token-mean'"):
        aggregate(VALUES, MASK, "token-men", Denominators.of(MASK))


@st.composite
def splits(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    rows, width = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator)
    mask = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.2, 0.6, 1.0]))
    # Any assignment of rows to pieces: contiguous or not, empty pieces included. Pieces are micro-batches or ranks.
    where = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    return values, mask, [[row for row in range(rows) if where[row] == piece] for piece in range(4)]


@pytest.mark.parametrize("mode", AGGREGATIONS.names())
@given(case=splits())
def test_any_split_adds_up_to_the_whole(mode: str, case: tuple[torch.Tensor, torch.Tensor, list[list[int]]]) -> None:
    values, mask, pieces = case
    whole = Denominators.of(mask, scale=5.0)
    at_once = values.clone().requires_grad_()
    total = aggregate(at_once, mask, mode, whole)
    total.backward()
    in_pieces = values.clone().requires_grad_()
    parts = torch.zeros(())
    for rows in pieces:
        if not rows:
            continue
        trim = max(1, int(mask[rows].sum(dim=1).max()))  # pieces have their own width, as micro-batches do
        trim = values.shape[1] if not bool((~mask[rows][:, trim:]).all()) else trim
        part = aggregate(in_pieces[rows, :][:, :trim], mask[rows][:, :trim], mode, whole)
        part.backward()
        parts = parts + part.detach()
    torch.testing.assert_close(parts, total.detach(), rtol=1e-5, atol=1e-6)
    assert in_pieces.grad is not None or not any(pieces)
    torch.testing.assert_close(in_pieces.grad, at_once.grad, rtol=1e-6, atol=1e-7)

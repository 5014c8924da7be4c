"""Every estimator against a literal loop of its formula, and what must not change its result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.batches import batches, rearranged, widened, with_padding_rows
from tests.algorithms.literal_advantages import LITERAL
from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs

EVERY = ADVANTAGES.names()
CLOSE = {"rtol": 2e-4, "atol": 2e-4}  # whitening divides differences of multiples of 1/8 by deviations down to 1/8


def test_every_estimator_has_a_literal_twin() -> None:
    assert set(LITERAL) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_equals_the_literal_loop(name: str, batch: AdvantageInputs) -> None:
    got = ADVANTAGES.get(name)(batch)
    torch.testing.assert_close(got.advantages, torch.tensor(LITERAL[name](batch)), **CLOSE)
    assert bool(torch.isfinite(got.returns).all())


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), seed=st.integers(0, 99))
def test_order_of_rows_padding_and_padding_rows_do_not_matter(name: str, batch: AdvantageInputs, seed: int) -> None:
    estimator = ADVANTAGES.get(name)
    rows, width = batch.mask.shape
    expected = estimator(batch)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    moved = estimator(with_padding_rows(widened(rearranged(batch, order), 2), 3))
    torch.testing.assert_close(moved.advantages[:rows, :width], expected.advantages[order], rtol=1e-5, atol=1e-6)
    assert not moved.advantages[rows:].any()
    assert not moved.advantages[:, width:].any()
    trained = batch.mask[order]
    torch.testing.assert_close(
        moved.returns[:rows, :width][trained], expected.returns[order][trained], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_cells_that_are_not_trained_get_nothing(name: str, batch: AdvantageInputs) -> None:
    got = ADVANTAGES.get(name)(batch)
    assert got.advantages.dtype == got.returns.dtype == torch.float32
    assert not got.advantages[~batch.mask].any()
    assert bool(torch.isfinite(got.advantages).all())

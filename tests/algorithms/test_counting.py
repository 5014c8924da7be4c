"""Counts and last cells of masks, against loops over their cells."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.algorithms.counting import count, last_cells, row_counts

MASKS = st.builds(
    lambda rows, width, share, seed: np.random.default_rng(seed).random((rows, width)) < share,
    st.integers(0, 5),
    st.one_of(st.integers(1, 40), st.sampled_from([64, 512, 520, 4096])),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    st.integers(0, 2**31),
)


@given(cells=MASKS, transposed=st.booleans())
def test_the_last_set_cell(cells: np.ndarray, transposed: bool) -> None:
    mask = torch.from_numpy(cells)
    if transposed:
        mask = mask.t().contiguous().t()
    width = cells.shape[1]
    expected = [max((place for place in range(width) if row[place]), default=width - 1) for row in cells]
    assert last_cells(mask).tolist() == expected


@given(cells=MASKS)
def test_set_cells(cells: np.ndarray) -> None:
    mask = torch.from_numpy(cells)
    assert row_counts(mask).tolist() == [sum(map(bool, row)) for row in cells]
    assert float(count(mask)) == sum(sum(map(bool, row)) for row in cells)

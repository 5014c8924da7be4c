from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.validation.subsets import best_of, subset_sizes, worst_of

SCORES = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


def enumerated(scores: list[float], k: int, pick: type[max] | type[min]) -> float:  # type: ignore[valid-type]
    """Slow literal form: every subset of k once."""
    found = [pick(subset) for subset in combinations(scores, k)]
    return sum(found) / len(found)


@given(SCORES, st.data())
def test_best_and_worst_equal_the_enumeration_of_all_subsets(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    assert best_of(scores, k) == pytest.approx(enumerated(scores, k, max), abs=1e-9)
    assert worst_of(scores, k) == pytest.approx(enumerated(scores, k, min), abs=1e-9)


@given(st.integers(1, 64), st.data())
def test_best_of_zeros_and_ones_is_pass_at_k(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    scores = [1.0] * right + [0.0] * (n - right)
    assert best_of(scores, k) == pytest.approx(1 - comb(n - right, k) / comb(n, k))  # Chen et al. 2021, eq. 1
    assert worst_of(scores, k) == pytest.approx(comb(right, k) / comb(n, k))


@given(SCORES, st.randoms())
def test_order_does_not_matter_bit_for_bit(scores: list[float], random: object) -> None:
    shuffled = list(scores)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for k in (1, len(scores)):
        assert best_of(scores, k) == best_of(shuffled, k)
        assert worst_of(scores, k) == worst_of(shuffled, k)


def test_ends_by_hand() -> None:
    scores = [3.0, 1.0, 2.0]
    assert best_of(scores, 1) == pytest.approx(2.0)
    assert best_of(scores, 3) == 3.0
    assert worst_of(scores, 3) == 1.0
    assert best_of(scores, 2) == pytest.approx((3 + 3 + 2) / 3)  # pairs 31, 32, 12
    assert worst_of(scores, 2) == pytest.approx((1 + 2 + 1) / 3)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= 3"):
        best_of([1.0, 2.0, 3.0], k)


@pytest.mark.parametrize(("n", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (10, [2, 4, 8, 10])])
def test_sizes(n: int, sizes: list[int]) -> None:
    assert subset_sizes(n) == sizes

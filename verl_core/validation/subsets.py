"""Exact expectations over subsets. Invariant: no sampling; equal scores give equal numbers, in any order.

For x sorted ascending and a subset of k of n drawn without replacement, the i-th smallest (1-based) is the maximum
when the other k-1 come from the i-1 before it: P = C(i-1, k-1) / C(n, k). The minimum mirrors it. With 0/1 scores
best@k is the unbiased pass@k of Chen et al. 2021 (arXiv 2107.03374).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def best_of(scores: Sequence[float], k: int) -> float:
    """Expected maximum of k scores drawn without replacement.

    Raises:
        ValueError: k is not in 1..len(scores).
    """
    count = len(scores)
    if not 1 <= k <= count:
        raise ValueError(f"best and worst of k need 1 <= k <= {count}, got {k}")
    ways = comb(count, k)
    return sum(score * (comb(rank, k - 1) / ways) for rank, score in enumerate(sorted(scores)))


def worst_of(scores: Sequence[float], k: int) -> float:
    """Expected minimum of k scores drawn without replacement. Raises as `best_of`."""
    return -best_of([-score for score in scores], k)


def subset_sizes(n: int) -> list[int]:
    """2, 4, 8, ... below n, then n; empty for n = 1, where best and worst are the mean."""
    powers = [1 << exponent for exponent in range(1, n.bit_length()) if 1 << exponent < n]
    return [*powers, n] if n > 1 else []

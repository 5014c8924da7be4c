"""Lengths of responses, in tokens. Invariant: a length is a function of (seed, ordinal, session), so that every mode is
asked for the same responses, whatever it starts when.

All statistics are of the law that is drawn from, cap included: F(x) = P(length <= x).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_Z99 = NormalDist().inv_cdf(0.99)
_GRID = 4000  # points of numeric integrals


class Lengths(Protocol):
    """A law of response lengths; hashable."""

    def __hash__(self) -> int: ...

    @property
    def longest(self) -> float:
        """No response is longer."""

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """F."""

    def draw(self, seed: int, ordinal: int, sessions: int) -> list[int]:
        """Lengths of the sessions of prompt `ordinal`; each at least 1."""


@dataclass(frozen=True)
class LogNormal:
    """min(exp(N(ln median, sigma)), cap), rounded up; sigma = ln(p99 / median) / 2.326.

    Attributes:
        p99: 99th percentile before the cap.
    """

    median: float
    p99: float
    cap: int

    @classmethod
    def with_mean(cls, mean: float, sigma: float, cap: int) -> LogNormal:
        """The law of this sigma whose mean, cap included, is `mean`; by bisection."""
        low, high = 1.0, float(cap) * 20
        for _ in range(80):
            middle = math.sqrt(low * high)
            law = cls(middle, middle * math.exp(_Z99 * sigma), cap)
            low, high = (middle, high) if mean_of(law) < mean else (low, middle)
        return law

    @property
    def sigma(self) -> float:
        """Of the logarithm."""
        return math.log(self.p99 / self.median) / _Z99

    @property
    def longest(self) -> float:
        """The cap."""
        return float(self.cap)

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of the continuous law; rounding up to whole tokens is left out."""
        z = (np.log(np.maximum(x, 1e-9)) - math.log(self.median)) / self.sigma
        inside = np.asarray([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z])
        return np.where(x >= self.cap, 1.0, inside)

    def draw(self, seed: int, ordinal: int, sessions: int) -> list[int]:
        """See Lengths."""
        normal = _generator(seed, ordinal).standard_normal(sessions)
        raw = np.ceil(self.median * np.exp(self.sigma * normal))
        return [int(value) for value in np.clip(raw, 1, self.cap)]


@dataclass(frozen=True)
class Empirical:
    """Given lengths: those of prompt `ordinal` are `groups[ordinal]`, or, past the end, of one of the given groups at
    random."""

    groups: tuple[tuple[int, ...], ...]

    @cached_property
    def _sorted(self) -> NDArray[np.float64]:
        return np.sort(np.asarray([length for group in self.groups for length in group], dtype=np.float64))

    @property
    def longest(self) -> float:
        """Longest that was given."""
        return float(self._sorted[-1])

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the given lengths."""
        return np.searchsorted(self._sorted, x, side="right") / len(self._sorted)

    def draw(self, seed: int, ordinal: int, sessions: int) -> list[int]:
        """See Lengths."""
        if ordinal >= len(self.groups):
            ordinal = int(_generator(seed, ordinal).integers(len(self.groups)))
        return list(self.groups[ordinal][:sessions])


def mean_of(law: Lengths) -> float:
    """E[length] = integral of 1 - F from 0 to the longest."""
    return longest_of(law, 1)


@lru_cache(maxsize=10_000)
def mean_up_to(law: Lengths, limit: float) -> float:
    """E[length | length <= limit] = limit - (integral of F from 0 to limit) / F(limit)."""
    if limit >= law.longest:
        return mean_of(law)
    x = np.linspace(0.0, limit, _GRID + 1)
    middle = (x[1:] + x[:-1]) / 2
    return limit - float(np.sum(law.cdf(middle))) * limit / _GRID / float(law.cdf(np.asarray([limit]))[0])


def cumulated(law: Lengths, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Integral of 1 - F from 0 to each x."""
    return np.asarray(np.interp(np.maximum(x, 0.0), *_cumulated(law)))


@lru_cache(maxsize=1_000)
def _cumulated(law: Lengths) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = np.linspace(0.0, law.longest, _GRID + 1)
    inside = 1.0 - law.cdf((x[1:] + x[:-1]) / 2)
    return x, np.concatenate([[0.0], np.cumsum(inside) * law.longest / _GRID])


@lru_cache(maxsize=10_000)
def longest_of(law: Lengths, count: int) -> float:
    """E[longest of `count` responses] = integral of 1 - F^count."""
    x = np.linspace(0.0, law.longest, _GRID + 1)
    middle = (x[1:] + x[:-1]) / 2
    return float(np.sum(1.0 - law.cdf(middle) ** count) * law.longest / _GRID)


def _generator(seed: int, ordinal: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}/{ordinal}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))

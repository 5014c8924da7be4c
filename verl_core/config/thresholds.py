"""Thresholds of the rollout correction, as written. Invariant: what parses here is what the mathematics uses; one
reader for the checks and for training.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("token", "seq_sum", "seq_mean", "seq_max")
DIVERGENCES = ("k1", "k2", "k3")

# The largest signed log-ratio of a sequence means nothing: seq_max takes distances only.
REJECTIONS = tuple(f"{level}_{kind}" for level in LEVELS for kind in DIVERGENCES if f"{level}_{kind}" != "seq_max_k1")


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds, both inclusive; `low` is None where only an upper one was given."""

    low: float | None
    high: float


@dataclass(frozen=True, slots=True)
class Rejection:
    """One statistic and the values of it that are kept.

    Attributes:
        level: of `LEVELS`.
        kind: of `DIVERGENCES`.
        band: k1: bounds of pi_rollout / pi_old, both given; k2, k3: an upper bound of the statistic.
    """

    level: str
    kind: str
    band: Band


def band_of(written: float | str) -> Band:
    """A number, or `lo_hi`.

    Raises:
        ValueError: neither; or not 0 < lo <= hi.
    """
    parts = str(written).strip().split("_")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(f"must be a number greater than 0, or two as in '0.5_5.0', got {written!r}")
    if numbers != sorted(numbers):
        raise ValueError(f"the lower bound comes first, got {written!r}")
    return Band(numbers[0] if len(numbers) == 2 else None, numbers[-1])


def weight_band(written: float | str) -> Band:
    """The threshold of importance weights.

    Raises:
        ValueError: as `band_of`; or a cap below 1, which would change the weight of every on-policy token.
    """
    band = band_of(written)
    if band.high < 1:
        raise ValueError(
            f"must be at least 1, got {written!r}: the weight of an on-policy token is 1 (a band is text: '0.5_5.0')"
        )
    return band


def rejections_of(options: str, thresholds: float | str | None) -> tuple[Rejection, ...]:
    """What `rollout_rs` and `rollout_rs_threshold` say together.

    Raises:
        ValueError: an unknown statistic, a missing threshold, or one that does not fit.
    """
    names = [name.strip() for name in options.split(",")]
    unknown = [name for name in names if name not in REJECTIONS]
    if unknown:
        raise ValueError(f"unknown statistic {unknown[0]!r} (known: {', '.join(REJECTIONS)})")
    if len(set(names)) < len(names):
        raise ValueError(f"a statistic is named twice in {options!r}")
    if thresholds is None:
        raise ValueError(f"{options!r} has no threshold")
    written = str(thresholds).split(",")
    if len(written) not in (1, len(names)):
        raise ValueError(f"{len(written)} thresholds for {len(names)} statistics; give one for all or one for each")
    return tuple(
        _rejection(name, text) for name, text in zip(names, written * (len(names) // len(written)), strict=True)
    )


def _rejection(name: str, written: str) -> Rejection:
    level, kind = name.rsplit("_", 1)
    band = band_of(written)
    if kind != "k1":
        if band.low is not None:
            raise ValueError(f"{name} is a distance and has an upper bound only, got {written!r}")
        return Rejection(level, kind, band)
    if band.low is None:
        if band.high < 1:
            raise ValueError(f"{name}: a single bound h means 1/h to h, so it is at least 1, got {written!r}")
        band = Band(1 / band.high, band.high)
    return Rejection(level, kind, band)

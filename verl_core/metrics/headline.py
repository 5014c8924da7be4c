"""The few numbers a person looks at first. Invariant: one table says which metric is meant, for console and report
alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

REWARD = ("critic/score/mean", "critic/rewards/mean")
UNSCORED = "reward/quarantined"  # samples of a step without a score; their reasons are in its rewards.parquet
LOSS = ("sft/loss",)
TOKENS_PER_S = ("perf/throughput", "perf/rollout_tokens_per_s")
KL = ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl")
ENTROPY = ("actor/entropy",)
LENGTH = ("response_length/mean",)
STEP_SECONDS = ("perf/time_per_step", "timing_s/step")
VALIDATION = ("val-core/", "val/")


def pick(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The first of `names` that is there and finite."""
    for name in names:
        value = metrics.get(name)
        if value is not None and math.isfinite(value):
            return float(value)
    return None


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Validation scores by their name without the prefix."""
    found = {}
    for name, value in metrics.items():
        for prefix in VALIDATION:
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = float(value)
    return found


def short(value: float) -> str:
    """A number in at most about five characters: 0.0012, 0.531, 18.2, 4.2k, 1.3M."""
    size = abs(value)
    if not math.isfinite(value):
        return "nan"
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4:
        return f"{value / 1e3:.1f}k"
    if size >= 100 or value == 0:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.1e}" if size < 1e-4 else f"{value:.4f}"


def duration(seconds: float) -> str:
    """`0:07`, `12:40`, `3:02:11`."""
    total = max(0, round(seconds))
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"

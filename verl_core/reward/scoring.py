"""One sample scored in this process. Invariant: whatever the function does short of ending the process, a Reward
comes back."""

from __future__ import annotations

import json
import math
import numbers
from typing import Any

import numpy as np

from verl_core.reward.interface import RewardFunction, Sample
from verl_core.trajectory import Reward, RewardStatus

FLOAT32_MAX = float(np.finfo(np.float32).max)
_REASON_CHARS = 500


class Unscorable(Exception):
    """Raised by the house's own reward functions: there is no score, and of which kind that is."""

    def __init__(self, status: RewardStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def score_sample(function: RewardFunction, sample: Sample) -> Reward:
    """Call `function` by the contract's names and judge what it returns.

    A number, or a dict with `score`, gives status ok; the dict's other entries become components. Otherwise the
    reward is quarantined: `raised` (SystemExit included), `not_finite` (also when float32 cannot hold it), `bad_type`.
    """
    try:
        result = function(
            data_source=sample.data_source,
            solution_str=sample.solution,
            ground_truth=sample.ground_truth,
            extra_info=sample.extra_info,
        )
    except Unscorable as error:
        return quarantined(sample.key, error.status, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: whatever comes costs one sample only
        return quarantined(sample.key, "raised", f"{type(error).__name__}: {error}")
    return judged(sample.key, result)


def judged(key: str, result: Any) -> Reward:
    """The Reward of what a reward function, or a remote service, answered."""
    if not isinstance(result, dict):
        return _judge(key, result, {})
    if "score" not in result:
        names = ", ".join(sorted(map(str, result))) or "nothing"
        return quarantined(key, "bad_type", f"the returned dict has no 'score', only {names}")
    return _judge(key, result["score"], {str(k): _plain(v) for k, v in result.items() if k != "score"})


def quarantined(key: str, status: RewardStatus, reason: str, components: dict[str, Any] | None = None) -> Reward:
    """A Reward that must not be trained on, its reason cut to a readable length."""
    return Reward(key, 0.0, components or {}, status, reason[:_REASON_CHARS])


def _judge(key: str, value: object, components: dict[str, Any]) -> Reward:
    if not isinstance(value, numbers.Real | np.bool_):
        return quarantined(key, "bad_type", f"the score is a {type(value).__name__}, not a number", components)
    try:
        score = float(value)
    except OverflowError:
        return quarantined(key, "not_finite", "the score is too large for a float", components)
    if not math.isfinite(score) or abs(score) > FLOAT32_MAX:
        return quarantined(key, "not_finite", f"the score is {score}", components)
    return Reward(key, score, components)


def _plain(value: object) -> Any:
    """`value` if strict JSON can hold it, a NumPy scalar as a Python one, else its printed form."""
    candidate = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(candidate, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr(candidate)[:_REASON_CHARS]
    return candidate

"""Mathematical answers (`gsm8k`, `math`, `math_verify/...`): math-verify decides whether two expressions are equal.

math-verify limits its own time by SIGALRM, which fails off the main thread and would fight with other timers. It is
switched off here: the reward process is killed from outside when a sample takes too long, which also ends code that
ignores signals.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from math_verify import parse, verify

from verl_core.errors import RewardError
from verl_core.reward.registry import math_sources, register_reward

_MARKS = ("$", r"\boxed", r"\(", r"\[")
logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns whenever its own time-outs are off


@register_reward(*math_sources())
def score_math(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """1.0 when the answer found in the response equals the ground truth, else 0.0 (also when no answer is found).

    Raises:
        RewardError: the ground truth is not an expression; the row is at fault, not the policy.
    """
    gold = _gold(str(ground_truth))
    found = parse(solution_str, parsing_timeout=None)
    return float(bool(found) and verify(gold, found, timeout_seconds=None))


@functools.lru_cache(maxsize=4096)
def _gold(text: str) -> list[Any]:
    marked = text if any(mark in text for mark in _MARKS) else rf"\boxed{{{text}}}"
    parsed: list[Any] = parse(marked, parsing_timeout=None)
    if not parsed:
        raise RewardError(f"ground truth {text!r} is not a mathematical expression; correct the row")
    return parsed

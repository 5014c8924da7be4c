"""`one_digit_sums`: the answer is the digits of the sum and nothing else."""

from __future__ import annotations

from typing import Any

from verl_core.reward.registry import register_reward


@register_reward("one_digit_sums")
def score_digits(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """1.0 when the response is the ground truth character by character, else 0.0: no spaces, no leading zeros, no
    words."""
    return float(solution_str == str(ground_truth))

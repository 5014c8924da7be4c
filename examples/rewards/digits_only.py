"""A reward function of one's own: is the response a number?"""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """1.0 when the response is one to three digits and nothing else."""
    return float(solution_str.isascii() and solution_str.isdigit() and len(solution_str) <= 3)

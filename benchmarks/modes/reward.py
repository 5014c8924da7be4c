"""The reward of the runs: a length is drawn, so all a response can do is to be made of the right letters."""

from __future__ import annotations

from typing import Any

TARGET = frozenset("13579")


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> dict[str, float]:
    """Share of the response's characters that are odd digits; 0 for an empty one.

    Every token of a long response counts as much as one of a short response, so a policy that learns from them all
    does not depend on how long they were.
    """
    hits = sum(letter in TARGET for letter in solution_str)
    return {"score": hits / len(solution_str) if solution_str else 0.0}

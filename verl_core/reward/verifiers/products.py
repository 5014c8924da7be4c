"""`calculator`: the last turn is the digits of the product and nothing else. What a tool said earns nothing."""

from __future__ import annotations

from typing import Any

from verl_core.reward.registry import register_reward


@register_reward("calculator")
def score_product(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> dict[str, float]:
    """1.0 when the last turn is the ground truth character by character, else 0.0; part `called` is 1.0 when a tool
    answered. A session without turns is its response."""
    session = extra_info.get("multi_turn", {})
    answer = session.get("last_turn", solution_str)
    answered = any(call["status"] == "ok" for call in session.get("calls", ()))
    return {"score": float(answer == str(ground_truth)), "called": float(answered)}

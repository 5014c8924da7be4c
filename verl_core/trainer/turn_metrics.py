"""What sessions of several turns did, from the account in `Trajectory.extra`. Invariant: nothing is said of runs that
have no turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from verl_core.trajectory import Trajectory

ACCOUNT = "multi_turn"  # what rollout.tool_agent calls it
_ERRORS = ("raised", "timeout", "unknown", "malformed", "refused")


def turn_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Turns and calls per session, calls by how they ended, seconds in tools (all sessions together: they run side by
    side), and tool tokens as a share of all response tokens. Empty without accounts.

    num_turns counts turns of the policy; verl's counts those of all sides.
    """
    accounts: list[dict[str, Any]] = [row.extra[ACCOUNT] for row in trajectories if ACCOUNT in row.extra]
    if not accounts:
        return {}
    turns = [int(account["turns"]) for account in accounts]
    calls = [len(account["calls"]) for account in accounts]
    made = [call for account in accounts for call in account["calls"]]
    ended = Counter(str(account["ended"]) for account in accounts)
    status = Counter(str(call["status"]) for call in made)
    tokens = sum(len(row.response_mask) for row in trajectories)
    told = tokens - sum(int(row.response_mask.sum()) for row in trajectories)
    return {
        **_spread("num_turns", turns),
        **_spread("tool_call_counts", calls),
        "tools/calls": float(len(made)),
        "tools/errors": float(sum(status[name] for name in _ERRORS)),
        **{f"tools/errors/{name}": float(status[name]) for name in _ERRORS if status[name]},
        "tools/truncated": float(sum(bool(call["truncated"]) for call in made)),
        "tools/seconds": float(sum(account["tool_s"] for account in accounts)),
        "tools/token_share": told / max(1, tokens),
        **{f"tools/ended/{name}": count / len(accounts) for name, count in sorted(ended.items())},
    }


def _spread(name: str, values: Sequence[int]) -> dict[str, float]:
    return {
        f"{name}/mean": sum(values) / len(values),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }

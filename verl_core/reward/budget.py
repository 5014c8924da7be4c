"""The error budget of scoring. Invariant: a run that goes on has scored all but `error_budget` of every step's
samples."""

from __future__ import annotations

from collections.abc import Sequence

from verl_core.errors import RewardError
from verl_core.trajectory import Reward

_ADVICE = {  # whatever scored: the reasons name the key of a limit
    "raised": "what scores it raises, or ends its process",
    "timeout": "raise that limit, or make what scores it faster",
    "not_finite": "the score must be finite in float32",
    "bad_type": "return a number, or a dict with 'score'",
}


def check_budget(rewards: Sequence[Reward], error_budget: float) -> None:
    """Raise RewardError when more than `error_budget` (a share) of `rewards` is quarantined; it counts each kind and
    shows one example of each."""
    failed = [reward for reward in rewards if reward.quarantined]
    if len(failed) <= error_budget * len(rewards):
        return
    kinds = {reward.status: reward for reward in reversed(failed)}
    lines = [
        f"  {status}: {sum(reward.status == status for reward in failed)}, for example {example.key}: {example.reason}"
        f" ({_ADVICE[status]})"
        for status, example in sorted(kinds.items())
    ]
    raise RewardError(
        f"{len(failed)} of {len(rewards)} samples could not be scored; reward.error_budget allows "
        f"{error_budget:.0%}:\n" + "\n".join(lines)
    )

"""The error budget of scoring. Invariant: a run that goes on has scored all but `error_budget` of every step's
samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_core.errors import RewardError
from verl_core.trajectory import Reward

_ADVICE = {  # whatever scored: the reasons name the key of a limit
    "raised": "what scores it raises, or ends its process",
    "timeout": "raise that limit, or make what scores it faster",
    "not_finite": "the score must be finite in float32",
    "bad_type": "return a number, or a dict with 'score'",
}


@dataclass(frozen=True, slots=True)
class Beside:
    """Samples that count too, though their rewards are gone: those of groups that a filter dropped.

    Attributes:
        failed: those of them that could not be scored.
        example: key and reason of one that failed; may be empty.
    """

    samples: int = 0
    failed: int = 0
    example: str = ""


NOTHING = Beside()


def failures_allowed(samples: int, error_budget: float) -> int:
    """With more of them among so many samples `check_budget` raises, whatever the others say."""
    return int(error_budget * samples)


def check_budget(rewards: Sequence[Reward], error_budget: float, beside: Beside = NOTHING) -> None:
    """Raise RewardError when more than `error_budget` (a share) of `rewards`, and of those `beside` them, is
    quarantined; it counts each kind and shows one example of each."""
    failed = [reward for reward in rewards if reward.quarantined]
    bad, total = len(failed) + beside.failed, len(rewards) + beside.samples
    if bad <= error_budget * total:
        return
    kinds = {reward.status: reward for reward in reversed(failed)}
    lines = [
        f"  {status}: {sum(reward.status == status for reward in failed)}, for example {example.key}: {example.reason}"
        f" ({_ADVICE[status]})"
        for status, example in sorted(kinds.items())
    ]
    if beside.failed:
        example = f", for example {beside.example}" if beside.example else ""
        lines.append(f"  {beside.failed} in groups that algorithm.filter_groups dropped{example}")
    raise RewardError(
        f"{bad} of {total} samples could not be scored; reward.error_budget allows "
        f"{error_budget:.0%}:\n" + "\n".join(lines)
    )

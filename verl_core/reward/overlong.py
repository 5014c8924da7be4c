"""DAPO's soft overlong punishment. Invariant: it depends on the response's tokens alone, and is told beside the score.

With L = data.max_response_length, B = reward.overlong_buffer.len and f = penalty_factor, a response of n tokens gets

    0                   n <= L - B
    f (L - B - n) / B   L - B < n <= L        so -f at n = L

(Yu et al. 2025, arXiv 2503.14476, eq. 13, where f = 1; verl's overlong_buffer). n counts all tokens of the output,
those of tools included. Validation is scored without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verl_core.config.schema.reward import OverlongBufferConfig
from verl_core.trajectory import Reward


def overlong_penalty(length: int, longest: int, config: OverlongBufferConfig) -> float:
    """What a response of `length` of at most `longest` tokens gets, never above 0."""
    return min(0.0, config.penalty_factor * (longest - config.len - length) / config.len)


def with_overlong_penalty(
    rewards: Sequence[Reward], lengths: Sequence[int], longest: int, config: OverlongBufferConfig
) -> list[Reward]:
    """The rewards with the penalty in their scores, and as parts `overlong_reward`, `overlong`, and `acc`: the score
    before, unless the reward function returned an `acc` of its own. Quarantined rewards stay as they are.

    Args:
        lengths: response tokens, one per reward.
        longest: data.max_response_length.
    """
    if not config.enable:
        return list(rewards)
    shaped = []
    for reward, length in zip(rewards, lengths, strict=True):
        if reward.quarantined:
            shaped.append(reward)
            continue
        penalty = overlong_penalty(length, longest, config)
        parts = {"acc": reward.score, **reward.components, "overlong_reward": penalty, "overlong": penalty < 0}
        shaped.append(replace(reward, score=reward.score + penalty, components=parts))
    return shaped

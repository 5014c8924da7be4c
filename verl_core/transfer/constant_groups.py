"""The group filter of DAPO: groups whose sessions all got the same. Invariant: a group is judged by the last outputs of
its sessions, those that have a score, and by equality, not by a deviation that rounds to zero.

A group baseline makes every advantage of such a group 0: it costs a place in the batch and teaches nothing (Yu et al.
2025, arXiv 2503.14476, eq. 11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verl_core.errors import RewardError
from verl_core.trajectory import Reward, last_outputs
from verl_core.transfer.eviction import Filter
from verl_core.transfer.flight import Group

KIND = "constant"  # of the reason, before the colon
SCORES = ("reward", "score", "seq_reward")  # verl's names of the whole score, without a KL


def constant_groups(metric: str) -> Filter:
    """The filter on `metric`: one of `SCORES`, or a part of the reward as the reward function names it.

    A group with fewer than two scored sessions is kept, as in verl: there is nothing to compare. What could not be
    scored is counted by the error budget, whether its group is kept or not.
    """

    def rejected(groups: Sequence[Group]) -> Mapping[str, str]:
        reasons = {}
        for group in groups:
            values = _values(group, metric)
            if len(values) > 1 and min(values) == max(values):
                reasons[group.prompt.uid] = f"{KIND}: {metric} is {values[0]:g} in all {len(values)} sessions"
        return reasons

    return rejected


def _values(group: Group, metric: str) -> list[float]:
    """Of each session whose last output has a score."""
    if not group.rewards:
        return []
    by_key = {row.key: reward for row, reward in zip(group.trajectories, group.rewards, strict=True)}
    last = [by_key[row.key] for row in last_outputs(group.trajectories).values()]
    return [_value(reward, metric) for reward in last if not reward.quarantined]


def _value(reward: Reward, metric: str) -> float:
    """Raises RewardError: the reward lacks the part, or it is not a finite number."""
    value = reward.score if metric in SCORES else reward.components.get(metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        given = ", ".join(sorted(reward.components)) or "nothing"
        raise RewardError(
            f"algorithm.filter_groups.metric names {metric!r}, and the reward of {reward.key} has {value!r} there (its "
            f"parts: {given}); the reward function must return a finite number for it besides, or use metric=score"
        )
    return float(value)

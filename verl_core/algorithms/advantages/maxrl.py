"""MaxRL: centred rewards over the group's success rate."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session

EPSILON = 1e-6


@ADVANTAGES.register("maxrl")
def maxrl(inputs: AdvantageInputs) -> Advantages:
    """A = (R - mean_g) / mean_g where mean_g > 1e-6, else 0.

    For rewards 0 and 1 and n samples the expected gradient is that of the first n - 1 terms of the expansion of
    log p(success) about 1, sum_k -(1 - p)^k / k: hard prompts weigh more. Negative rewards have no such meaning. In a
    group where nothing succeeded, and for a lone session, the formula gives 0.

    Source: Tajwar et al. 2026, arXiv 2602.02710.

    Differences: verl 0.9.1 and TRL do not have it; SkyRL adds an epsilon to the denominator instead of the threshold.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        mean = group_statistics(sessions.outcome, sessions.counted, sessions.group).mean
        solved = mean > EPSILON
        return torch.where(solved, (sessions.outcome - mean) / torch.where(solved, mean, 1.0), 0.0)

    return per_session(inputs, formula)

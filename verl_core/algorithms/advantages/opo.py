"""OPO: the baseline of least variance when a token's gradient norm is about the same everywhere."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_total
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session


@ADVANTAGES.register("opo")
def opo(inputs: AdvantageInputs) -> Advantages:
    """A = R - sum_g(length R) / sum_g(length), length = tokens the policy sampled.

    A lone session keeps its bare reward.

    Source: Hao et al. 2025, arXiv 2505.23585.

    Differences: a session of several outputs counts with the length of all of them; rejected tokens still count in the
    length.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        counted, group = sessions.counted, sessions.group
        weighted = group_total(sessions.tokens * sessions.outcome, counted, group)
        baseline = weighted / group_total(sessions.tokens, counted, group).clamp(min=1)
        alone = group_total(torch.ones_like(baseline), counted, group) < 2
        return sessions.outcome - torch.where(alone, 0.0, baseline)

    return per_session(inputs, formula)

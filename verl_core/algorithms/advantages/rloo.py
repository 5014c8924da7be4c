"""RLOO: the baseline of a response is the mean of the others."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session


@ADVANTAGES.register("rloo")
def rloo(inputs: AdvantageInputs) -> Advantages:
    """A = R - mean of the other sessions of the group = n / (n - 1) (R - mean_g).

    The baseline does not depend on the response itself, so the policy gradient is unbiased. A lone session keeps its
    bare reward, which is unbiased too.

    Source: Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740.

    Differences: verl has two implementations, and its `rloo_vectorized` gives a lone session 0.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        group = group_statistics(sessions.outcome, sessions.counted, sessions.group)
        others = group.count / (group.count - 1).clamp(min=1)
        return others * (sessions.outcome - group.baseline)

    return per_session(inputs, formula)

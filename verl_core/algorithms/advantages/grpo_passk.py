"""GRPO for pass@k: only the best response of a group is reinforced."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics, top_two
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session

EPSILON = 1e-6


@ADVANTAGES.register("grpo_passk")
def grpo_passk(inputs: AdvantageInputs) -> Advantages:
    """The one best session of a group gets A = (R_best - R_second) / (std_g + 1e-6), all others 0; with a tie at the
    top all get 0.

    A lone session has R_second = 0 and deviation 1. With `algorithm.norm_adv_by_std_in_grpo=false` the division is left
    out.

    Source: Tang et al. 2025, arXiv 2503.19595.

    Differences: verl refuses a group of one row, which a row added as padding is; here such a row has no outcome.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        outcome, counted, group = sessions.outcome, sessions.counted, sessions.group
        top = top_two(outcome, counted, group)
        gap = torch.where(top.leads, top.best - top.second, 0.0)
        return gap / (group_statistics(outcome, counted, group).scale + EPSILON) if inputs.norm_by_std else gap

    return per_session(inputs, formula)

"""GRPO: a response is as good as it is better than its siblings."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session

EPSILON = 1e-6


@ADVANTAGES.register("grpo")
def grpo(inputs: AdvantageInputs) -> Advantages:
    """A = (R - mean_g) / (std_g + 1e-6), with the unbiased deviation of the group.

    A lone session of a group has no sibling to compare with and keeps its bare reward: mean 0, deviation 1, so
    A = R / (1 + 1e-6). With `algorithm.norm_adv_by_std_in_grpo=false` the division is left out, which is the Dr. GRPO
    form (with `loss_agg_mode=seq-mean-token-sum-norm`).

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2; Liu et al. 2025, arXiv 2503.20783, section 3.2.

    Differences: verl's `grpo_vectorized` divides whatever the switch says. TRL divides by the deviation plus 1e-4.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        group = group_statistics(sessions.outcome, sessions.counted, sessions.group)
        centred = sessions.outcome - group.baseline
        return centred / (group.scale + EPSILON) if inputs.norm_by_std else centred

    return per_session(inputs, formula)

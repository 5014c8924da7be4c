"""REINFORCE++ with the group's mean as baseline."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session


@ADVANTAGES.register("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> Advantages:
    """A = R - mean_g on every trainable token, then (A - mean) / sqrt(var + 1e-8) over all trainable tokens of the
    batch.

    A lone session of a group has baseline 0.

    Source: Hu et al. 2025, arXiv 2501.03262 (the variant for several samples per prompt).

    Differences: none in the value; statistics are float64 here.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        return sessions.outcome - group_statistics(sessions.outcome, sessions.counted, sessions.group).baseline

    return per_session(inputs, formula, whiten=True)

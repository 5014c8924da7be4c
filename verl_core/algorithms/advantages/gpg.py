"""GPG: centred rewards, scaled up for the samples that carry no signal."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session


@ADVANTAGES.register("gpg")
def gpg(inputs: AdvantageInputs) -> Advantages:
    """A = alpha (R - mean_g), alpha = sessions / max(1, sessions with R != 0), over the whole batch.

    A lone session has baseline 0. Meant for the loss of the same name.

    Source: Chu et al. 2025, arXiv 2504.02546.

    Differences: verl counts rows, padding included, which inflates alpha; here sessions with an outcome.
    """

    def formula(sessions: Sessions) -> torch.Tensor:
        counted = sessions.counted
        telling = (counted & (sessions.outcome != 0)).sum().clamp(min=1)
        group = group_statistics(sessions.outcome, counted, sessions.group)
        return counted.sum() / telling * (sessions.outcome - group.baseline)

    return per_session(inputs, formula)

"""GDPO: GRPO apart for every part of the reward, so that a part with a small spread is not drowned by the others."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.sessions import Sessions, per_session

EPSILON = 1e-6


@ADVANTAGES.register("gdpo")
def gdpo(inputs: AdvantageInputs) -> Advantages:
    """A = sum_k weight_k (R_k - mean_g,k) / (std_g,k + 1e-6) over the parts k, then whitened over all trainable tokens
    of the batch.

    Parts are those of a session's last output, named by `algorithm.gdpo_reward_keys`, weighed by
    `algorithm.gdpo_reward_weights` (1 each without them). A lone session has mean 0 and deviation 1. Needs
    `reward_parts`.

    Source: Liu et al. 2026, arXiv 2601.05242.

    Differences: verl's V1 trainer cannot run it, as the parts do not reach the estimator.
    """
    parts = inputs.needed("reward_parts").double()
    weights = inputs.part_weights or (1.0,) * parts.shape[1]

    def formula(sessions: Sessions) -> torch.Tensor:
        spoken = torch.where(sessions.counted[:, None], parts[sessions.last], 0.0)
        total = torch.zeros_like(sessions.outcome)
        for weight, part in zip(weights, spoken.unbind(dim=1), strict=True):
            group = group_statistics(part, sessions.counted, sessions.group)
            total = total + weight * (part - group.baseline) / (group.scale + EPSILON)
        return total

    return per_session(inputs, formula, whiten=True)

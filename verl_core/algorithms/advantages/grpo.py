"""GRPO: a response is as good as it is better than its siblings."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.groups import group_statistics
from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages

EPSILON = 1e-6


@ADVANTAGES.register("grpo")
def grpo(inputs: AdvantageInputs) -> Advantages:
    """A = (R - mean_g) / (std_g + 1e-6) on every trainable token of the row, with the unbiased deviation.

    A group with one live row has mean 0 and deviation 1, so A = R / (1 + 1e-6): there is no sibling to compare with,
    the bare reward is kept. With `norm_by_std=False` the division is left out, which is the Dr. GRPO form. `returns`
    equals `advantages`.

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2; Liu et al. 2025, arXiv 2503.20783, section 3.2.
    """
    outcome = inputs.outcomes
    group = group_statistics(outcome, inputs.live, inputs.group_index)
    alone = group.count < 2
    centred = outcome - torch.where(alone, 0.0, group.mean)
    scale = torch.where(alone, 1.0, group.std) + EPSILON if inputs.norm_by_std else torch.ones_like(centred)
    per_row = (centred / scale).to(torch.float32)
    advantages = torch.where(inputs.mask, per_row[:, None], 0.0)
    return Advantages(advantages=advantages, returns=advantages)

"""ReMax: the baseline is what the policy gets when it takes the likeliest token everywhere."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.returns import discounted, less_rows
from verl_core.algorithms.advantages.sessions import Sessions


@ADVANTAGES.register("remax")
def remax(inputs: AdvantageInputs) -> Advantages:
    """G_t = r_t + G_next; A_t = G_t - R of a greedy response to the same prompt; returns = G.

    Works with one sample per prompt. Each group has one session more than `rollout.n`, at temperature 0: it is scored
    and never trained on. A group whose greedy response has no score is dropped.

    Source: Li et al. 2023, arXiv 2310.10505.

    Differences: verl's V1 trainer cannot run it, as it has no greedy pass.
    """
    sessions = Sessions.of(inputs)
    returns = discounted(inputs.token_rewards, inputs.own, 1.0, sessions)
    advantages = less_rows(returns, inputs.needed("greedy_rewards"))
    return Advantages(torch.where(sessions.trained(inputs.mask), advantages, 0.0), returns=returns)

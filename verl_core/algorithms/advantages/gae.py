"""Generalised advantage estimation: what a critic did not expect."""

from __future__ import annotations

import torch

from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.returns import discounted, next_values
from verl_core.algorithms.advantages.sessions import Sessions
from verl_core.algorithms.advantages.whitening import whitened


@ADVANTAGES.register("gae")
def gae(inputs: AdvantageInputs) -> Advantages:
    """d_t = r_t + gamma V_next - V_t; A_t = d_t + gamma lam A_next, whitened over the batch as in
    reinforce_plus_plus; returns = A + V before whitening.

    "next" is the next token of the policy: values and time steps of tool text do not exist. Needs the critic's
    `values`.

    Source: Schulman et al. 2015, arXiv 1506.02438, eq. 11 to 16.

    Differences: in verl a session's outputs are rows of their own; here the last token of an output is followed by the
    first of the next.
    """
    sessions, own = Sessions.of(inputs), inputs.own
    values = torch.where(own, inputs.needed("values"), 0.0)
    surprise = inputs.rewards + inputs.gamma * next_values(values, own, sessions) - values
    raw = discounted(surprise, own, inputs.gamma * inputs.lam, sessions)
    mask = sessions.trained(inputs.mask)
    return Advantages(whitened(raw, mask), returns=torch.where(mask, raw + values, 0.0))

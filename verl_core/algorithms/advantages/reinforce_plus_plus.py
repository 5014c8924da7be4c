"""REINFORCE++: the discounted return of every token, normalised over the batch."""

from __future__ import annotations

from verl_core.algorithms.advantages.interface import ADVANTAGES, AdvantageInputs, Advantages
from verl_core.algorithms.advantages.returns import discounted
from verl_core.algorithms.advantages.sessions import Sessions
from verl_core.algorithms.advantages.whitening import whitened


@ADVANTAGES.register("reinforce_plus_plus")
def reinforce_plus_plus(inputs: AdvantageInputs) -> Advantages:
    """G_t = r_t + gamma G_next; A = (G - mean) / sqrt(var + 1e-8) over all trainable tokens of the batch, var
    unbiased (n - 1); returns = G.

    No comparison within groups: works with one sample per prompt.

    Source: Hu et al. 2025, arXiv 2501.03262.

    Differences: verl refuses a batch with a single trainable token; here its return stays as it is.
    """
    sessions = Sessions.of(inputs)
    returns = discounted(inputs.token_rewards, inputs.own, inputs.gamma, sessions)
    return Advantages(whitened(returns, sessions.trained(inputs.mask)), returns=returns)

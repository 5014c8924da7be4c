"""One token from one row of logits. Invariant: the log-prob is of the very distribution the token was drawn from."""

from __future__ import annotations

import torch

from verl_core.errors import RolloutError
from verl_core.rollout.interface import SamplingParams


def choose(
    logits: torch.Tensor, params: SamplingParams, generator: torch.Generator, barred: torch.Tensor | None = None
) -> tuple[int, float]:
    """Draw a token (argmax at temperature 0) and give its log-prob in nats.

    Args:
        logits: float32 [V].
        barred: bool [V]; tokens that may not come. The others share the whole probability.

    Raises:
        RolloutError: logits are not finite.
    """
    if not bool(torch.isfinite(logits).all()):
        raise RolloutError("the model gave logits that are not finite; its weights are broken")
    if barred is not None:
        logits = logits.masked_fill(barred, float("-inf"))
    if params.temperature == 0:
        token = int(logits.argmax())
        return token, float(torch.log_softmax(logits, dim=-1)[token])
    log_probs = torch.log_softmax(_cut(logits / params.temperature, params), dim=-1)
    token = int(torch.multinomial(log_probs.exp(), 1, generator=generator))
    return token, float(log_probs[token])


def _cut(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Logits with everything outside top_k and top_p at -inf; the first token past the top_p mass is kept."""
    if 0 < params.top_k < logits.numel():
        logits = logits.masked_fill(logits < logits.topk(params.top_k).values[-1], float("-inf"))
    if params.top_p < 1.0:
        ordered, order = logits.sort(descending=True, stable=True)
        mass = torch.softmax(ordered, dim=-1)
        outside = order[mass.cumsum(dim=-1) - mass >= params.top_p]
        logits = logits.index_fill(0, outside, float("-inf"))
    return logits

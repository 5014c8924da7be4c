"""From hidden states to log-probs of chosen tokens. Invariant: logits exist only for positions that are asked for, in
float32, and never more than `LOGITS_AT_ONCE` of them at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from verl_core.algorithms.entropy import entropy_from_log_softmax

LOGITS_AT_ONCE = 2**26  # numbers, 256 MiB in float32

Head = Callable[[torch.Tensor], torch.Tensor]
Scored = tuple[torch.Tensor, torch.Tensor]


def token_log_probs(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    vocabulary: int,
    temperature: float,
    with_entropy: bool,
    at_once: int = LOGITS_AT_ONCE,
    with_squares: bool = False,
) -> Scored:
    """log_softmax(head(hidden) / temperature) at `targets`, and the entropy of the same distribution.

    Long inputs go through in pieces; under autograd each piece is computed again in the backward pass instead of
    being kept.

    Args:
        hidden: [N, H].
        head: hidden states to logits [n, vocabulary].
        targets: int64 [N], or [N, M] for M tokens at each position.
        at_once: logits of one piece.

    Returns:
        float32 nats of the shape of `targets`, and float32 [N] nats or an empty tensor without `with_entropy`;
        `with_squares` makes the second [N, 2], with the sum of the squared probabilities beside the entropy.
    """

    def piece(states: torch.Tensor, wanted: torch.Tensor) -> Scored:
        logits = head(states).float()
        log_p = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
        places = wanted if wanted.dim() == 2 else wanted[:, None]
        chosen = log_p.gather(-1, places).reshape(wanted.shape).clone()  # FSDP hooks cannot follow a view
        if not with_entropy:
            return chosen, log_p.new_empty(0)
        entropy = entropy_from_log_softmax(log_p)
        return chosen, torch.stack([entropy, (2 * log_p).exp().sum(-1)], dim=-1) if with_squares else entropy

    rows = max(1, at_once // vocabulary)
    if len(targets) <= rows:
        return piece(hidden, targets)
    again = torch.is_grad_enabled()
    parts: list[Scored] = [
        checkpoint(piece, states, wanted, use_reentrant=False) if again else piece(states, wanted)
        for states, wanted in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat([log_probs for log_probs, _ in parts]), torch.cat([entropy for _, entropy in parts])

"""From per-token losses to one number. Registry of `actor.loss_agg_mode`.

Invariant: a mode is a sum over rows divided by denominators of the whole mini-batch, which are given. So the values of
micro-batches, and of ranks, add up to the value of the whole, and their gradients do too. Nothing is ever averaged
over pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from verl_core.algorithms.counting import row_counts
from verl_core.algorithms.registry import Registry


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over one global mini-batch, all ranks and micro-batches.

    Attributes:
        tokens: trainable tokens (rejected ones are not counted).
        rows: rows with at least one trainable token.
        scale: `actor.loss_scale_factor`, or data.max_response_length; read by seq-mean-token-sum-norm only.
    """

    tokens: int
    rows: int
    scale: float = 1.0

    @classmethod
    def of(cls, mask: torch.Tensor, scale: float = 1.0) -> Denominators:
        """Counts of a bool [B, T] mask that holds the whole mini-batch."""
        counts = row_counts(mask)
        return cls(tokens=int(counts.sum()), rows=int((counts > 0).sum()), scale=scale)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss of the policy or the critic before aggregation.

    Attributes:
        per_token: float32 [B, T]; cells outside the mask mean nothing (`aggregate` leaves them out) and give no
            gradient.
        sums: detached float32 scalars, each a sum over trainable tokens; divided by the token count of the whole
            batch they are the metrics `actor/<name>` or `critic/<name>`.
    """

    per_token: torch.Tensor
    sums: dict[str, torch.Tensor]


# (sum of each row, float32 [B]; mask, bool [B, T]; counts of the whole) -> scalar
Aggregation = Callable[[torch.Tensor, torch.Tensor, Denominators], torch.Tensor]

AGGREGATIONS: Registry[Aggregation] = Registry("aggregation mode", "actor_rollout_ref.actor.loss_agg_mode")


@AGGREGATIONS.register("token-mean")
def token_mean(row_sums: torch.Tensor, mask: torch.Tensor, whole: Denominators) -> torch.Tensor:
    """Sum / tokens: every token weighs the same (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.3)."""
    return row_sums.sum() / max(1, whole.tokens)


@AGGREGATIONS.register("token-sum")
def token_sum(row_sums: torch.Tensor, mask: torch.Tensor, whole: Denominators) -> torch.Tensor:
    """Sum."""
    return row_sums.sum()


@AGGREGATIONS.register("seq-mean-token-sum")
def seq_mean_token_sum(row_sums: torch.Tensor, mask: torch.Tensor, whole: Denominators) -> torch.Tensor:
    """Mean over rows of row sums."""
    return row_sums.sum() / max(1, whole.rows)


@AGGREGATIONS.register("seq-mean-token-mean")
def seq_mean_token_mean(row_sums: torch.Tensor, mask: torch.Tensor, whole: Denominators) -> torch.Tensor:
    """Mean over rows of row means: every row weighs the same (GRPO, Shao et al. 2024, arXiv 2402.03300, eq. 3)."""
    return (row_sums / row_counts(mask).clamp(min=1)).sum() / max(1, whole.rows)


@AGGREGATIONS.register("seq-mean-token-sum-norm")
def seq_mean_token_sum_norm(row_sums: torch.Tensor, mask: torch.Tensor, whole: Denominators) -> torch.Tensor:
    """Mean over rows of row sums / scale (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783, with a constant for the
    length).
    """
    return row_sums.sum() / max(1, whole.rows) / whole.scale


def share_of(mode: str, whole: Denominators) -> float:
    """What a loss aggregated with both counts at 1 is multiplied with to get the loss of the mini-batch: for counts
    that are known only after the last micro-batch.
    """
    one, single = torch.ones(1), torch.ones(1, 1, dtype=torch.bool)
    divide = AGGREGATIONS.get(mode)
    return float(divide(one, single, whole) / divide(one, single, Denominators(1, 1, whole.scale)))


def aggregate(values: torch.Tensor, mask: torch.Tensor, mode: str, whole: Denominators) -> torch.Tensor:
    """This piece's share of the mini-batch's loss, a float32 scalar.

    Args:
        values: float32 [B, T] per token.
        mask: bool [B, T].
        mode: key of `AGGREGATIONS`.
        whole: counts of the global mini-batch that the piece belongs to.
    """
    row_sums = torch.where(mask, values, 0.0).sum(dim=1)
    return AGGREGATIONS.get(mode)(row_sums, mask, whole)

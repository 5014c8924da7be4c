"""Log-probs and values of a whole batch without gradient. Invariant: every response token of every row is scored
exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verl_core.batch import TrainBatch
from verl_core.engine.interface import LogProbs
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.model import PolicyModel
from verl_core.engine.plan import Rows, rank_plans
from verl_core.engine.ranks import Ranks
from verl_core.engine.value_model import ValueModel
from verl_core.trajectory import Float32

Share = dict[int, tuple[Float32, Float32]]
ValueShare = dict[int, Float32]


@torch.no_grad()
def score(
    model: PolicyModel, ranks: Ranks, batch: TrainBatch, budget: int, with_entropy: bool, with_squares: bool = False
) -> Share:
    """This rank's rows: row to (log-probs, entropy), each float32 [R] nats; entropy is empty without `with_entropy`,
    and [R, 2] `with_squares`: sums of squared probabilities beside it.

    Collective: every rank calls it with the same batch.

    Args:
        budget: tokens of a micro-batch, padding included.
    """
    share: Share = {}
    for rows in _plan(ranks, batch, budget):
        micro = MicroBatch.build(batch, rows, ranks.device)
        log_probs, entropy = model(micro.input_ids, micro.positions, micro.targets, with_entropy, with_squares)
        share.update(_by_row(batch, rows, log_probs.cpu(), entropy.cpu()))
    return share


@torch.no_grad()
def score_values(model: ValueModel, ranks: Ranks, batch: TrainBatch, budget: int) -> ValueShare:
    """This rank's rows: row to values, float32 [R]. Collective; arguments as for `score`."""
    share: ValueShare = {}
    for rows in _plan(ranks, batch, budget):
        micro = MicroBatch.build(batch, rows, ranks.device)
        values = model(micro.input_ids, micro.positions).cpu()
        if rows:
            sizes = [int(batch.response_lengths[row]) for row in rows]
            share.update((row, part.numpy()) for row, part in zip(rows, values.split(sizes), strict=True))
    return share


def _plan(ranks: Ranks, batch: TrainBatch, budget: int) -> list[Rows]:
    """Micro-batches of this rank, over all rows."""
    lengths = batch.prompt_lengths + batch.response_lengths
    return rank_plans(list(range(len(batch))), lengths, ranks.world, budget)[ranks.rank]


def _by_row(batch: TrainBatch, rows: Rows, log_probs: torch.Tensor, entropy: torch.Tensor) -> Share:
    if not rows:
        return {}
    sizes = [int(batch.response_lengths[row]) for row in rows]
    entropies = entropy.split(sizes) if len(entropy) else [entropy] * len(rows)
    parts = zip(rows, log_probs.split(sizes), entropies, strict=True)
    return {row: (scored.numpy(), spread.numpy()) for row, scored, spread in parts}


def merged(batch: TrainBatch, shares: Sequence[Share], with_entropy: bool) -> LogProbs:
    """Shares of all ranks as flat columns in the batch's order."""
    rows: Share = {}
    for share in shares:
        rows.update(share)
    every = range(len(batch))
    log_probs = np.concatenate([rows[row][0] for row in every])
    spread = np.concatenate([rows[row][1] for row in every]) if with_entropy else None
    if spread is None or spread.ndim == 1:
        return LogProbs(log_probs=log_probs, entropy=spread)
    return LogProbs(log_probs=log_probs, entropy=spread[:, 0], squares=spread[:, 1])


def merged_values(batch: TrainBatch, shares: Sequence[ValueShare]) -> Float32:
    """Shares of all ranks as one flat column in the batch's order."""
    rows: ValueShare = {}
    for share in shares:
        rows.update(share)
    return np.concatenate([rows[row] for row in range(len(batch))]).astype(np.float32)

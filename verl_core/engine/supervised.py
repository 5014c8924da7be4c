"""What supervised fine-tuning minimises: the negative log-likelihood of the taught tokens. Invariant: the loss of a
piece is its share of the mini-batch's, as in `objective`."""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.network import Network
from verl_core.engine.objective import Piece, PlainObjective


@dataclass(frozen=True, slots=True)
class SupervisedObjective(PlainObjective):
    """Implements Objective. Reads no column: what is taught, the response mask says.

    Attributes:
        loss_agg_mode: `actor.loss_agg_mode`.
    """

    loss_agg_mode: str

    def piece(self, model: Network, micro: MicroBatch, whole: Denominators) -> Piece:
        """See Objective."""
        log_probs, _ = model(micro.input_ids, micro.positions, micro.targets)
        mask = micro.mask
        loss = aggregate(-micro.padded(log_probs), mask, self.loss_agg_mode, whole)
        here = Denominators.of(mask)
        return Piece(loss, {"loss": loss.detach()}, {}, here.tokens, here.rows)

"""What the critic minimises. Invariant: the loss of a piece is its share of the mini-batch's, as in `objective`."""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.value_loss import value_loss
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.network import Network
from verl_core.engine.objective import Piece, PlainObjective

VALUES, RETURNS = "values", "returns"


@dataclass(frozen=True, slots=True)
class ValueObjective(PlainObjective):
    """`critic` as an objective. It rejects nothing: how far a policy moved says nothing about what a state is worth.

    Attributes:
        clip: `critic.cliprange_value`.
        loss_agg_mode: as the actor's.
    """

    clip: float
    loss_agg_mode: str

    def columns(self, single_update: bool) -> list[str]:
        """Old values and returns, both of the advantage stage."""
        return [VALUES, RETURNS]

    def piece(self, model: Network, micro: MicroBatch, whole: Denominators) -> Piece:
        """See Objective."""
        mask = micro.mask
        values = micro.padded(model(micro.input_ids, micro.positions))
        found = value_loss(values, micro.columns[VALUES], micro.columns[RETURNS], mask, self.clip)
        loss = aggregate(found.per_token, mask, self.loss_agg_mode, whole)
        here = Denominators.of(mask)
        return Piece(loss, {"vf_loss": loss.detach()}, found.sums, here.tokens, here.rows)

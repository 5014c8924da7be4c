"""Updater: all optimizer steps of one global step.

Invariant: the result does not depend on how rows were spread over ranks and micro-batches (beyond float rounding); a
number that is not finite stops the step before it reaches the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from verl_core.algorithms.aggregation import Denominators, share_of
from verl_core.batch import TrainBatch
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.network import Network
from verl_core.engine.objective import Piece
from verl_core.engine.plan import Rows, mini_batches, rank_plans
from verl_core.engine.ranks import Ranks
from verl_core.engine.schedule import Schedule
from verl_core.engine.sharding import clip_gradients, trained
from verl_core.engine.tally import Tally
from verl_core.engine.training import SECTIONS, Role, Training
from verl_core.errors import PolicyError

SHOWN = 8
LOOK_AT: dict[Role, str] = {
    "actor": "advantages and log-probs; if the policy",
    "critic": "rewards, values and returns; if the critic",
    "sft": "messages; if the policy",
}


class Updater:
    """Optimizer, schedule and loss around a model.

    Args:
        seed: `trainer.seed`, of the order of mini-batches.

    Attributes:
        updates_done: optimizer steps since the start of the run; the schedule's clock.
        optimizer: AdamW over what is trained; weight decay on all of it.
    """

    def __init__(self, model: Network, ranks: Ranks, training: Training, seed: int) -> None:
        self._model, self._ranks, self._training, self._seed = model, ranks, training, seed
        self._objective = training.objective
        optim = training.optim
        self._schedule = Schedule(optim, training.horizon)
        self.optimizer = torch.optim.AdamW(
            [parameter for _, parameter in trained(model)],
            lr=optim.lr,
            betas=(optim.betas[0], optim.betas[1]),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self.updates_done = 0

    def run(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Epochs x mini-batches over `batch`; returns the metrics of the step.

        Raises:
            ValueError: a column is missing.
            PolicyError: loss or gradient is not finite; names the step and the rows. The weights hold the mini-batches
                before it.
        """
        steps = list(self._mini_batches(batch, step))
        columns = self._columns(batch, single_update=len(steps) == 1)
        tally = Tally()
        for number, rows in enumerate(steps):
            if rows:
                prepared = self._objective.prepared(batch, rows, (self._seed, step, number))
                self._optimizer_step(prepared, rows, [*columns, *self._objective.derived], tally, step)
            else:
                tally.empty_updates += 1
        return tally.metrics(self._ranks, self._training.role) | self._objective.constants

    def _mini_batches(self, batch: TrainBatch, step: int) -> Iterator[Rows]:
        live = np.bincount(batch.row_index[batch.response_mask], minlength=len(batch)) > 0
        for epoch in range(self._training.epochs):
            order = (self._seed, step, epoch) if self._training.shuffle else None
            yield from mini_batches(batch.group_index, live, self._training.mini_batch_size, order)

    def _columns(self, batch: TrainBatch, single_update: bool) -> list[str]:
        needed = self._objective.columns(single_update)
        missing = [name for name in needed if name not in batch.columns]
        if missing:
            raise ValueError(f"the batch lacks the columns {missing}; it has {sorted(batch.columns)}")
        return [*needed, *(n for n in self._objective.optional if n in batch.columns and n not in needed)]

    def _optimizer_step(self, batch: TrainBatch, rows: Rows, columns: list[str], tally: Tally, step: int) -> None:
        tokens_of = np.bincount(batch.row_index[batch.response_mask], minlength=len(batch))[rows]
        whole = Denominators(int(tokens_of.sum()), int((tokens_of > 0).sum()), self._training.scale)
        lengths = batch.prompt_lengths + batch.response_lengths
        plans = rank_plans(rows, lengths, self._ranks.world, self._training.token_budget)
        counts = Denominators(1, 1, whole.scale) if self._objective.rejects else whole
        bad: Rows = []
        pieces: list[Piece] = []
        for micro_rows in plans[self._ranks.rank]:
            micro = MicroBatch.build(batch, micro_rows, self._ranks.device, trainable=True, columns=columns)
            pieces.append(self._backward(micro, counts))
            if not math.isfinite(float(pieces[-1].loss)):
                bad += micro.rows
        tally.seen += whole.tokens
        if self._objective.rejects:
            whole = self._kept(pieces, whole.scale)
            self._scale_gradients(share_of(self._training.loss_agg_mode, whole))
        for piece in pieces:
            tally.add(piece, share_of(self._training.loss_agg_mode, whole) if self._objective.rejects else 1.0)
        norm = clip_gradients(self._model, self._training.grad_clip)
        self._stop_unless_finite(batch, rows, bad, norm, step)
        if not whole.tokens:  # all rejected: a step would move the weights by momentum and decay alone
            self.optimizer.zero_grad(set_to_none=True)
            tally.empty_updates += 1
            return
        tally.lr = self._schedule.lr(self.updates_done)
        for group in self.optimizer.param_groups:
            group["lr"] = tally.lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates_done += 1
        tally.updates += 1
        tally.tokens += whole.tokens
        tally.grad_norms.append(norm)

    def _kept(self, pieces: list[Piece], scale: float) -> Denominators:
        """Counts of the mini-batch after rejection. Collective."""
        own = {
            "tokens": float(sum(piece.tokens for piece in pieces)),
            "rows": float(sum(piece.rows for piece in pieces)),
        }
        total = self._ranks.total(own)
        return Denominators(int(total["tokens"]), int(total["rows"]), scale)

    def _scale_gradients(self, factor: float) -> None:
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _backward(self, micro: MicroBatch, whole: Denominators) -> Piece:
        """Add the micro-batch's gradient; the piece comes back without its graph."""
        piece = self._objective.piece(self._model, micro, whole)
        piece.loss.backward()
        return replace(piece, loss=piece.loss.detach())

    def _stop_unless_finite(self, batch: TrainBatch, rows: Rows, bad: Rows, norm: float, step: int) -> None:
        """Raise the same error on every rank when any of them saw a number that is not finite. Collective."""
        trouble = self._ranks.total({"bad": float(len(bad)) + float(not math.isfinite(norm))})["bad"]
        if not trouble:
            return
        self.optimizer.zero_grad(set_to_none=True)
        culprits = sorted(row for part in self._ranks.gathered(bad) for row in part) or rows
        names = ", ".join(batch.keys[row] for row in culprits[:SHOWN])
        more = f" and {len(culprits) - SHOWN} more" if len(culprits) > SHOWN else ""
        whose = "the critic's" if self._training.role == "critic" else "the"
        what = f"{whose} {'loss' if culprits is not rows else 'gradient'}"
        raise PolicyError(
            f"step {step}: {what} is not finite (gradient norm {norm}) in a micro-batch with the rows {names}{more}. "
            f"The optimizer step was not taken. Look at their {LOOK_AT[self._training.role]} broke, lower "
            f"{SECTIONS[self._training.role]}.optim.lr and resume from a checkpoint"
        )

"""PreferenceTrainer: optimizer steps of a reward model on pairs. Invariant: the loss is the mean over the pairs of a
step, so micro-batches and ranks change nothing; a number that is not finite stops before it reaches the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl_core.algorithms.bradley_terry import bradley_terry
from verl_core.config.schema import OptimConfig, RewardTrainingConfig
from verl_core.data.preferences import Preference
from verl_core.engine.plan import Rows, rank_plans
from verl_core.engine.ranks import Ranks
from verl_core.engine.reward_network import RewardNetwork, padded_rows
from verl_core.engine.schedule import Schedule
from verl_core.engine.sharding import clip_gradients
from verl_core.errors import PolicyError

GRAD_CLIP, WARM_UP = 1.0, 0.05
_FILLER = np.zeros(1, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PairScores:
    """Over the pairs asked about: mean loss in nats, share whose chosen response scores higher (ties count half), and
    mean distance of the two scores."""

    loss: float
    accuracy: float
    distance: float


class PreferenceTrainer:
    """Optimizer and schedule around a reward model.

    Args:
        model: sharded over `ranks`.

    Attributes:
        steps_done: optimizer steps; the schedule's clock.
    """

    def __init__(self, model: RewardNetwork, ranks: Ranks, settings: RewardTrainingConfig) -> None:
        self.model, self._ranks, self._budget = model, ranks, settings.max_token_len_per_gpu
        optim = OptimConfig(lr=settings.lr, weight_decay=0.0, lr_warmup_steps_ratio=WARM_UP, lr_scheduler_type="cosine")
        self._schedule = Schedule(optim, settings.steps)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0, fused=True)
        self.steps_done = 0

    def step(self, pairs: Sequence[Preference]) -> dict[str, float]:
        """One optimizer step on the mean loss of `pairs`. Collective: every rank gives the same.

        Returns:
            loss, accuracy and distance before the step, grad_norm before clipping, lr.

        Raises:
            PolicyError: loss or gradient is not finite; the weights are those before.
        """
        scores = self._run(pairs, train=True)
        norm = clip_gradients(self.model, GRAD_CLIP)
        if not math.isfinite(scores.loss) or not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise PolicyError(
                f"reward model, step {self.steps_done + 1}: the loss is {scores.loss}, the gradient norm {norm}; the "
                "step was not taken. Lower reward_training.lr; look for broken weights in reward_training.model_path"
            )
        rate = self._schedule.lr(self.steps_done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        return {
            "loss": scores.loss,
            "accuracy": scores.accuracy,
            "distance": scores.distance,
            "grad_norm": norm,
            "lr": rate,
        }

    @torch.no_grad()
    def judge(self, pairs: Sequence[Preference]) -> PairScores:
        """How the model does on pairs that it is not trained on. Collective."""
        return self._run(pairs, train=False)

    def _run(self, pairs: Sequence[Preference], train: bool) -> PairScores:
        """Forward, and with `train` backward, through all micro-batches of this rank."""
        lengths = np.asarray([pair.length for pair in pairs], dtype=np.int64)
        plan = rank_plans(list(range(len(pairs))), lengths, self._ranks.world, self._budget // 2)[self._ranks.rank]
        sums = {"loss": 0.0, "right": 0.0, "distance": 0.0}
        for rows in plan:
            chosen, rejected, margin, mask = self._scored(pairs, rows)
            loss = bradley_terry(chosen, rejected, margin, mask).sum() / len(pairs)
            if train:
                loss.backward()
            distance = torch.where(mask, (chosen - rejected).detach(), 0.0)
            right = (distance > 0).float() + 0.5 * (distance == 0).float()
            sums["loss"] += float(loss.detach())
            sums["right"] += float(torch.where(mask, right, 0.0).sum())
            sums["distance"] += float(distance.sum())
        total = self._ranks.total(sums)
        return PairScores(total["loss"], total["right"] / len(pairs), total["distance"] / len(pairs))

    def _scored(
        self, pairs: Sequence[Preference], rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """(chosen, rejected, margin, mask) of a micro-batch; of one masked pair where this rank has none left."""
        taken = [pairs[row] for row in rows] or [Preference(_FILLER, _FILLER)]
        both = [*(pair.chosen for pair in taken), *(pair.rejected for pair in taken)]
        ids, lengths = padded_rows(both, self.model.pad_id, self._ranks.device)
        scores = self.model(ids, lengths)
        margin = torch.tensor([pair.margin for pair in taken], dtype=torch.float32, device=scores.device)
        mask = torch.full((len(taken),), bool(rows), device=scores.device)
        return scores[: len(taken)], scores[len(taken) :], margin, mask

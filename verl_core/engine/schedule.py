"""The learning rate as a function of optimizer steps done. Invariant: no state; the horizon is known before the first
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_core.config.schema import OptimConfig, RunConfig


def optimizer_steps(config: RunConfig, total_training_steps: int) -> int:
    """Optimizer steps of a whole run: global steps x epochs x mini-batches."""
    actor = config.actor_rollout_ref.actor
    mini_batches = -(-config.data.train_batch_size // actor.ppo_mini_batch_size)
    return total_training_steps * actor.ppo_epochs * mini_batches


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then constant or cosine down to `min_lr_ratio`.

    Attributes:
        optim: `actor_rollout_ref.actor.optim`.
        horizon: optimizer steps of the run.
    """

    optim: OptimConfig
    horizon: int

    @property
    def warmup(self) -> int:
        """Optimizer steps of warm-up."""
        given = self.optim.lr_warmup_steps
        return given if given >= 0 else int(self.optim.lr_warmup_steps_ratio * self.horizon)

    def lr(self, done: int) -> float:
        """Rate of the optimizer step after `done` of them.

        The first step of a warm-up of w has lr / w, not 0: a step at rate 0 would waste a batch. Past the horizon the
        last rate holds.
        """
        if done < self.warmup:
            return self.optim.lr * (done + 1) / self.warmup
        if self.optim.lr_scheduler_type == "constant":
            return self.optim.lr
        progress = min(1.0, (done - self.warmup) / max(1, self.horizon - self.warmup))
        floor = self.optim.min_lr_ratio
        return self.optim.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))

"""The learning rate as a function of optimizer steps done. Invariant: no state; the horizon is known before the first
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_core.config.schema import OptimConfig


def optimizer_steps(global_steps: int, epochs: int, batch_size: int, mini_batch_size: int) -> int:
    """Optimizer steps of a whole run: global steps x epochs x mini-batches; sizes in prompts."""
    return max(0, global_steps) * epochs * -(-batch_size // mini_batch_size)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up, then constant or cosine down to `min_lr_ratio`.

    Attributes:
        optim: `actor_rollout_ref.actor.optim`, or the critic's.
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

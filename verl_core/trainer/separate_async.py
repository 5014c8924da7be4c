"""`separate_async`: rollout and training on devices of their own, both at work all the time.

Invariant: servers stand still only while they switch to weights that they have received already, and each token names
the weights it was sampled from.
"""

from __future__ import annotations

from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.registry import register_trainer


@register_trainer("separate_async")
class SeparateAsyncTrainer(PPOTrainer):
    """Sampling takes what has settled; publication does not wait for what runs."""

    ahead = True
    overlaps = True

    def on_sample_begin(self, step: int) -> None:
        """Nothing in a running trainer; after a crash servers may be behind."""
        self.session.publish(step - 1)

    def on_step_end(self, step: int) -> None:
        """Version = step, while responses are being sampled."""
        self.session.publish(step)

    def on_validate_begin(self, step: int) -> None:
        """Validation before training publishes version 0."""
        self.session.publish(step)

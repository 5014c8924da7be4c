"""`colocate_async`: rollout and training take turns on the same devices, and no turn waits for the last response.

Invariant: a response that is cut off when training begins keeps its tokens, and goes on under the next weights.
"""

from __future__ import annotations

from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.registry import register_trainer


@register_trainer("colocate_async")
class ColocateAsyncTrainer(PPOTrainer):
    """As many groups as a batch needs end the rollout; the others pause, with what they have."""

    ahead = True

    def on_step_begin(self, step: int) -> None:
        """Serving goes on where the last step's end left it; after a crash it starts here."""
        self._generate(step - 1)

    def on_sample_end(self, step: int) -> None:
        """Cut off what runs; its clients hold the tokens and wait at the closed servers."""
        self.session.servers.sleep(abort=True)
        self.session.buffer.pause()

    def on_step_end(self, step: int) -> None:
        """Version = step; paused responses go on."""
        self._generate(step)

    def on_validate_begin(self, step: int) -> None:
        """Validation before training publishes version 0; later ones run beside what was resumed."""
        self._generate(step)

    def _generate(self, version: int) -> None:
        self.session.wake_servers(version)
        self.session.buffer.resume()

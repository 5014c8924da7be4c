"""`separate_async`: rollout and training on devices of their own, both at work all the time.

Invariant: servers stand still only while they switch to weights that they have received already, and each token names
the weights it was sampled from.
"""

from __future__ import annotations

import time

from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.registry import register_trainer


@register_trainer("separate_async")
class SeparateAsyncTrainer(PPOTrainer):
    """Sampling takes what has settled; publication does not wait for what runs. Devices that the trainer lends to the
    rollout come back before it trains."""

    ahead = True
    overlaps = True
    _asked_at, _missing = 0.0, -1  # when, and how many groups, the step under way has waited for; -1 = none does

    def on_step_begin(self, step: int) -> None:
        """Nothing in a running trainer; after a crash servers may be behind."""
        self._publish(step - 1)

    def on_sample_begin(self, step: int) -> None:
        """Lent devices stay until enough groups are there."""
        if (lent := self.session.lent) is None:
            return
        self._asked_at = time.perf_counter()
        self._missing = max(0, self.session.config.data.train_batch_size - self.session.buffer.sampleable(step))
        if lent.is_out:
            spool = self.session.files.spool(step)  # what is scored and dropped here is kept, as in the rollout itself
            self.session.buffer.wait_for(lent.lending.threshold, step, spool.append)
            spool.close()

    def on_sample_end(self, step: int) -> None:
        """The rollout goes on; what was lent comes back."""
        if (lent := self.session.lent) is None:
            return
        lent.take_back()
        if self._missing >= 0:
            lent.lending.waited(time.perf_counter() - self._asked_at, self._missing)
            self._missing = -1

    def on_step_end(self, step: int) -> None:
        """Version = step, while responses are being sampled."""
        self._publish(step)
        self.session.offer_devices(step)

    def on_validate_begin(self, step: int) -> None:
        """Validation before training publishes version 0."""
        self._publish(step)

    def _publish(self, version: int) -> None:
        """Leases stand still meanwhile, as the servers do for the last part of it."""
        self.session.buffer.pause()
        self.session.publish(version)
        self.session.buffer.resume()

"""`sync`: rollout, then training, on the same devices. Invariant: every token of step t is sampled from version t -
1."""

from __future__ import annotations

from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.registry import register_trainer


@register_trainer("sync")
class SyncTrainer(PPOTrainer):
    """On-policy: servers sleep while the trainer works, and wake with the new weights."""

    on_policy = True

    def on_step_begin(self, step: int) -> None:
        """A running trainer finds servers on their way to these weights; a node that starts here after a crash finds
        them asleep or behind. Prompts go out when they are there: requests would take their cores while they load."""
        if self.session.servers.under_way == step - 1:
            self.session.settle_servers()
        else:
            self.session.wake_servers(step - 1)

    def on_sample_end(self, step: int) -> None:
        """Free device memory for the trainer."""
        self.session.servers.sleep()

    def on_step_end(self, step: int) -> None:
        """Version = step. Servers load it while the step's record is written."""
        self.session.publish_soon(step)

    def on_validate_begin(self, step: int) -> None:
        """Validation before training publishes version 0."""
        self.session.wake_servers(step)

    def on_train_end(self) -> None:
        """Servers that could not load the last weights are an error of this run."""
        self.session.settle_servers()

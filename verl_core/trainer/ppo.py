"""PPOTrainer: the loop. Invariant: a global step is rollout, reward, advantage, update, in this order, and every mode
is this same loop with hooks filled in.

`fit` runs the loop in this process. A Flyte graph calls the four stage methods from its nodes instead; nothing
differs, for each stage persists its output under the step's folder and a stage whose output exists reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from verl_core.trainer import stages
from verl_core.trainer.session import Session
from verl_core.trainer.stage import StageOutput
from verl_core.trainer.validate import validate


class PPOTrainer:
    """One trainer abstraction; a mode is a subclass that fills hooks.

    Hooks, in the order of a step: on_step_begin, on_sample_begin, on_sample_end, on_step_end. Around the run:
    on_init_end, on_train_begin, on_train_end; around a validation: on_validate_begin, on_validate_end.
    """

    on_policy = False  # every token comes from the weights that train on it
    ahead = False  # prompts are served before the step that needs them, and dropped ones replaced
    overlaps = False  # servers generate while the trainer works

    def __init__(self, session: Session) -> None:
        self.session = session
        self.on_init_end()

    def fit(self) -> None:
        """Train from where the run directory stands to the last step."""
        self.begin()
        for step in range(self.session.first_open_step(), self.session.total_steps + 1):
            self.step(step)
        self.end()

    def step(self, step: int) -> StageOutput:
        """One global step."""
        self.rollout(step)
        self.reward(step)
        self.advantage(step)
        return self.update(step)

    # ---- the stages, each with the hooks that belong to it

    def rollout(self, step: int) -> StageOutput:
        """Sample `train_batch_size` groups under the weights of step - 1."""
        if (done := self.session.files.finished("rollout", step)) is not None:
            return done
        self._restore(step - 1)
        self.session.start_clock(step)
        self.on_step_begin(step)
        stages.serve(self.session, step)
        self.on_sample_begin(step)
        output = stages.rollout(self.session, step)
        self.on_sample_end(step)
        return output

    def reward(self, step: int) -> StageOutput:
        """Score the step's trajectories."""
        if (done := self.session.files.finished("reward", step)) is not None:
            return done
        if self.session.config.colocates_reward_model:
            self.on_sample_end(step)
        return stages.reward(self.session, step)

    def advantage(self, step: int) -> StageOutput:
        """Old and reference log-probs under one frozen policy, values, KL in the reward, advantages."""
        if (done := self.session.files.finished("advantage", step)) is not None:
            return done
        self._restore(step - 1)
        self.on_sample_end(step)
        return stages.advantage(self.session, step)

    def update(self, step: int) -> StageOutput:
        """Train on the step's batch; checkpoint; publish the weights; validate when due; then write the step record."""
        if (done := self.session.files.finished("update", step)) is not None:
            return done
        self._restore(step - 1)
        self.on_sample_end(step)
        draft = stages.update(self.session, step)
        started = time.perf_counter()
        self.on_step_end(step)
        draft.metrics["timing_s/update_weights"] = time.perf_counter() - started
        if self.session.validates_at(step):
            draft.metrics.update(self.validate(step))
        return stages.close_step(self.session, draft)

    def begin(self) -> None:
        """Validation before training (once per run), then `on_train_begin`."""
        self.session.note_resume()
        start = self.session.start_step
        if self.session.first_open_step() == start + 1 and self.session.config.trainer.val_before_train:
            self._restore(start)
            self.session.sinks.log(start, self.validate(start))
        self.on_train_begin()

    def end(self) -> None:
        """`on_train_end`; always reached when the last step is done."""
        self.on_train_end()

    def validate(self, step: int) -> dict[str, float]:
        """Validation under the weights of `step`."""
        self.on_validate_begin(step)
        metrics = validate(self.session, step, self._scoring(step))
        self.on_validate_end(step)
        return metrics

    @contextmanager
    def _scoring(self, step: int) -> Iterator[None]:
        """Around the scoring of a validation: servers make room for a reward model on their devices, and go on."""
        reward = self.session.config.reward.reward_model
        takes_turns = self.session.config.colocates_reward_model and reward.in_validation
        if takes_turns:
            self.on_sample_end(step + 1)
        yield
        if takes_turns:
            self.on_validate_begin(step)

    def _restore(self, step: int) -> None:
        """Weights of `step`; the devices are the trainer's while batches are replayed. Also: is the run still ours?"""
        self.session.lock.check()
        self.session.check()
        if not self.session.stands_at(step):
            self.on_sample_end(step + 1)
            self.session.restore(step)

    # ---- hooks: a mode overrides the ones it needs

    def on_init_end(self) -> None:
        """Session is open; weights may be published."""

    def on_train_begin(self) -> None:
        """Before the first step of this process."""

    def on_step_begin(self, step: int) -> None:
        """Before prompts of the step are served; the servers hold the weights of step - 1 when it returns."""

    def on_sample_begin(self, step: int) -> None:
        """Prompts are served; before the replay buffer is asked."""

    def on_sample_end(self, step: int) -> None:
        """The batch is here and the trainer wants the devices; colocated modes free them. Called again before each
        stage that uses them, since a process may start there."""

    def on_step_end(self, step: int) -> None:
        """Weights of the step are checkpointed if due; publish them here."""

    def on_validate_begin(self, step: int) -> None:
        """Before validation prompts are submitted."""

    def on_validate_end(self, step: int) -> None:
        """After validation."""

    def on_train_end(self) -> None:
        """After the last step."""

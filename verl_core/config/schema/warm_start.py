"""`warm_start.*`: a tiny policy made here by supervised fine-tuning on the task, instead of read from a folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WarmStartConfig:
    """A small Llama-type model over the characters of `data.prepare`'s task. When enabled, its folder becomes
    `actor_rollout_ref.model.path`, which must then be left empty.

    Attributes:
        enable: build and train the model before the run.
        target_accuracy: training stops when a sample at temperature 1 is right with this probability, over the whole
        task.
        steps: optimizer steps of supervised fine-tuning at most.
        task_share: share of the task's distinct prompts that is taught; the rest is left to reinforcement learning.
        tool_share: with rollout.multi_turn.enable, share of the taught prompts that is answered with a tool's help; the
        rest by heart.
        batch_size: rows per step.
        lr: constant AdamW learning rate.
        hidden_size: width; a multiple of 32, since the inference engine wants heads of at least 32.
        num_layers: decoder layers.
        seed: of the initial weights and of the rows drawn.
    """

    enable: bool = False
    target_accuracy: float = 0.42
    steps: int = 200
    task_share: float = 0.8
    tool_share: float = 0.5
    batch_size: int = 128
    lr: float = 2e-3
    hidden_size: int = 128
    num_layers: int = 3
    seed: int = 1

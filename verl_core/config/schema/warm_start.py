"""`warm_start.*`: a tiny policy made here by supervised fine-tuning on the task, instead of read from a folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class WarmStartConfig:
    """A small Llama-type model over the characters of `data.prepare`'s task. When enabled, its folder becomes
    `actor_rollout_ref.model.path`, which must then be left empty.

    Attributes:
        enable: build and train the model before the run.
        steps: optimizer steps of supervised fine-tuning.
        batch_size: rows per step.
        lr: constant AdamW learning rate.
        hidden_size: width; a multiple of 32, since the inference engine wants heads of at least 32.
        num_layers: decoder layers.
        seed: of the initial weights and of the rows drawn.
    """

    enable: bool = False
    steps: int = 50
    batch_size: int = 128
    lr: float = 2e-3
    hidden_size: int = 128
    num_layers: int = 3
    seed: int = 1

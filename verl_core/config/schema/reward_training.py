"""`reward_training.*`: a reward model that is trained here on preferences, instead of read from a folder."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RewardTrainingConfig:
    """A sequence classifier with one label and the Bradley-Terry loss. `workflows/reward_model.py` makes it; a run with
    reward.reward_model.enable makes it first, and its folder becomes `reward.reward_model.model_path`, which must then
    be left empty.

    Attributes:
        enable: train it.
        model_path: folder that it starts from, a language model or a reward model; empty = the policy's start.
        train_files, val_files: parquet or JSONL with `prompt`, `chosen`, `rejected` and maybe `margin`; empty =
            pairs are built from the rows of `data`, right answer against wrong ones.
        pairs, val_pairs: how many are built.
        batch_size: pairs per step.
        lr: of AdamW, at the top; a short warm-up before, a cosine down to 0 after it.
        max_token_len_per_gpu: token budget of a micro-batch, both sides of a pair and padding included.
        save_freq: steps between checkpoints, from which a training that was cut off goes on.
        seed: of the pairs that are built and of their order.
    """

    enable: bool = False
    model_path: str = ""
    train_files: list[str] = field(default_factory=list)
    val_files: list[str] = field(default_factory=list)
    pairs: int = 4096
    val_pairs: int = 512
    batch_size: int = 64
    steps: int = 300
    lr: float = 1e-5
    max_token_len_per_gpu: int = 16384
    save_freq: int = 100
    seed: int = 1

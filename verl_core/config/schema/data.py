"""`data.*`: where prompts come from and in which order they are served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class PrepareConfig:
    """Build the dataset instead of reading one that exists. Used when `data.train_files` is empty.

    Attributes:
        task: name of a `reasoning-gym` task, `one_digit_sums` (the quickstart's own) or `calculator` (for tools).
        file: or a file of questions and answers (parquet or JSONL), turned into the trainer's format.
        config: the task's own settings. For a file: `question_key` and `answer_key`, the names of its columns.
        data_source: picks the verifier; empty = the task's own. A file has none of its own.
        train_size, val_size: rows.
        system_prompt: put before every question when not empty.
    """

    task: str = ""
    file: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    data_source: str = ""
    train_size: int = 0
    val_size: int = 0
    seed: int = 1
    system_prompt: str = ""

    @property
    def enabled(self) -> bool:
        """Whether rows are built here."""
        return bool(self.task or self.file)


@dataclass
class SamplingConfig:
    """Which row is served next; neither name nor class_path = epochs, see `shuffle`.

    Attributes:
        name: of a built-in sampler.
        class_path: or package.module.Class of one's own, see `verl_core.data.samplers`.
        kwargs: it is made with.
    """

    name: str = ""
    class_path: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataConfig:
    """Attributes:
    train_files, val_files: parquet or JSONL in verl's columns (data_source, prompt, reward_model.ground_truth,
        extra_info).
    train_batch_size: prompts (groups) per global step.
    val_batch_size: prompts per validation batch; null = all at once.
    max_prompt_length, max_response_length: tokens.
    truncation: what to do with an over-long prompt: `error`, `drop` (counted) or `left` (cut at the left).
    shuffle, seed: the order of an epoch is a function of (seed, epoch).
    train_max_samples, val_max_samples: use only the first rows; -1 = all.
    """

    train_files: list[str] = field(default_factory=list)
    val_files: list[str] = field(default_factory=list)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    train_batch_size: int = 32
    val_batch_size: int | None = None
    max_prompt_length: int = 512
    max_response_length: int = 512
    truncation: Literal["error", "drop", "left"] = "error"
    shuffle: bool = True
    seed: int = 1
    train_max_samples: int = -1
    val_max_samples: int = -1
    sampler: SamplingConfig = field(default_factory=SamplingConfig)

"""`sft.*`: supervised fine-tuning, by `workflows/sft.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SftConfig:
    """Train on given answers instead of sampled ones.

    Attributes:
        enable: this configuration is of supervised fine-tuning; settings of reinforcement learning are then refused.
        messages_key: column of chat messages, of which the assistant's are learnt. Null = the rows are those of
            reinforcement learning, and reward_model.ground_truth is the assistant's message behind the prompt.
        max_length: tokens of a row; data.truncation says what happens to a longer one.
    """

    enable: bool = False
    messages_key: str | None = "messages"
    max_length: int = 1024

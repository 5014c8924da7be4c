"""Prompt and answer as token ids. Invariant: a prompt's ids are those the rollout will send, for both come from the
same `ChatTokenizer`; the answer is the text's ids followed by the end token, which is what the policy must sample to
be right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_core.data.row import DatasetRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError

IGNORED = -100  # label of a position that carries no loss; torch's convention


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its right answer, both as ids; the answer ends with the end token."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Padded:
    """A right-padded batch.

    Attributes:
        input_ids, attention_mask: int64 [B, L].
        labels: int64 [B, L]; labels[:, t] is what the logits of position t must predict, `IGNORED` outside the answer.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor


def examples_of(rows: Sequence[DatasetRow], tokenizer: ChatTokenizer) -> list[Example]:
    """The distinct examples of `rows`, in order of first appearance.

    Raises:
        DataError: a row has no ground truth to teach.
    """
    distinct: dict[str, DatasetRow] = {}
    for row in rows:
        if row.ground_truth is None:
            raise DataError(f"{row.place}: no ground_truth; a warm start needs the right answer as text")
        distinct.setdefault(json.dumps([row.messages, str(row.ground_truth)], sort_keys=True), row)
    return [_example(row, tokenizer) for row in distinct.values()]


def _example(row: DatasetRow, tokenizer: ChatTokenizer) -> Example:
    prompt = tokenizer.encode_chat(row.messages, row.place)
    answer = tokenizer.inner.encode(str(row.ground_truth), add_special_tokens=False)
    return Example(tuple(prompt.tolist()), (*answer, tokenizer.eos_token_id))


def pad(examples: Sequence[Example], pad_id: int) -> Padded:
    """One batch of `examples`, padded to the longest."""
    longest = max(len(example.prompt_ids) + len(example.answer_ids) for example in examples)
    ids = torch.full((len(examples), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(examples):
        whole = torch.tensor([*example.prompt_ids, *example.answer_ids])
        ids[row, : len(whole)] = whole
        mask[row, : len(whole)] = 1
        start = len(example.prompt_ids) - 1  # the last prompt position predicts the first answer token
        labels[row, start : len(whole) - 1] = whole[start + 1 :]
    return Padded(ids, mask, labels)

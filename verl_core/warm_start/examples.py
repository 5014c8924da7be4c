"""Prompt and answer as token ids. Invariant: a prompt's ids are those the rollout will send, for both come from the
same `ChatTokenizer`; the answer is the text's ids followed by the end token, which is what the policy must sample to
be right. What a tool says in between is made by the same `ToolTurn` as in the rollout, and never taught.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_core.data.row import DatasetRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.data.tool_turn import ToolTurn
from verl_core.errors import DataError
from verl_core.tools.interface import ToolCall
from verl_core.tools.parsers import CallFormat

IGNORED = -100  # label of a position that carries no loss; torch's convention


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its right answer, both as ids; the answer ends with the end token.

    Attributes:
        told: (start, end) in answer_ids of what a tool says; nothing when start equals end.
    """

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    told: tuple[int, int] = (0, 0)


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


def demonstrations_of(rows: Sequence[DatasetRow], tokenizer: ChatTokenizer, calls: CallFormat) -> list[Example]:
    """The distinct rows answered with a tool's help: the call of `extra_info.entry`, the tool's answer, the answer.

    Args:
        calls: how a call is written.

    Raises:
        DataError: a row shows no call.
    """
    turn = ToolTurn(tokenizer)
    distinct = {json.dumps(row.messages, sort_keys=True): row for row in reversed(rows)}
    return [_demonstration(row, tokenizer, turn, calls) for row in reversed(distinct.values())]


def _demonstration(row: DatasetRow, tokenizer: ChatTokenizer, turn: ToolTurn, calls: CallFormat) -> Example:
    try:
        entry = json.loads(row.extra_info["entry"])
        call, result = ToolCall(entry["call"]["name"], entry["call"]["arguments"]), str(entry["result"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{row.place}: extra_info.entry shows no call; a warm start of a tool agent needs JSON with call (name, "
            "arguments) and result"
        ) from error
    asks = [*tokenizer.encode(calls.write([call])), tokenizer.eos_token_id]
    told = turn.ids([result])
    plain = _example(row, tokenizer)
    return Example(plain.prompt_ids, (*asks, *told, *plain.answer_ids), (len(asks), len(asks) + len(told)))


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
        labels[row, start + example.told[0] : start + example.told[1]] = IGNORED
    return Padded(ids, mask, labels)

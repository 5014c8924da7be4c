"""Preference: one prompt with a better and a worse response, as token ids. Invariant: ids are made once, here, in the
form in which responses are scored later: `as_sampled` by a policy, or `as_answered` for a model that reads text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_core.data.reward_tokenizer import answered_chat
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.trajectory import Int32

STOP_REASONS = ("stop", "length")

Placed = tuple[str, Mapping[str, Any]]  # where a record stands, and the record
Encoder = Callable[[list[dict[str, Any]], str, str, str], Int32]  # chat, answer, stop reason, place -> one row


@dataclass(frozen=True, slots=True)
class Preference:
    """Attributes:
    chosen, rejected: int32, prompt and response as one row.
    margin: by how much the chosen one should score higher, at least.
    """

    chosen: Int32
    rejected: Int32
    margin: float = 0.0

    @property
    def length(self) -> int:
        """Tokens of the longer row."""
        return max(len(self.chosen), len(self.rejected))


def as_sampled(tokenizer: ChatTokenizer) -> Encoder:
    """Ids as a policy with this tokenizer samples them."""

    def encode(chat: list[dict[str, Any]], answer: str, stop: str, place: str) -> Int32:
        ids = tokenizer.encode(answer)
        ended = [*ids, tokenizer.eos_token_id] if stop == "stop" else ids
        return np.concatenate([tokenizer.encode_chat(chat, place), np.asarray(ended, dtype=np.int32)])

    return encode


def as_answered(tokenizer: ChatTokenizer) -> Encoder:
    """Ids of the answered chat, which is all that a model of another vocabulary is shown: whether a response came to
    its end cannot be seen there."""
    return lambda chat, answer, stop, place: answered_chat(tokenizer, chat, answer, place)


def preferences_of(records: Iterable[Placed], encode: Encoder) -> list[Preference]:
    """The rows of `records`: `prompt` is text (one user message) or a chat, `chosen` and `rejected` text or a chat of
    one assistant message. `margin` (a number) and `chosen_stop`, `rejected_stop` (`stop`, or `length` for a response
    that was cut off before its end token) may be left out.

    Raises:
        DataError: a column is missing or of another form, or both responses are the same.
    """
    return [_preference(place, record, encode) for place, record in records]


def _preference(place: str, record: Mapping[str, Any], encode: Encoder) -> Preference:
    chat = _chat(record.get("prompt"), place)
    rows = []
    for column in ("chosen", "rejected"):
        stop = record.get(f"{column}_stop") or "stop"
        if stop not in STOP_REASONS:
            raise DataError(f"{place}, column {column}_stop: expected stop or length, got {stop!r}")
        rows.append(encode(chat, _text(record.get(column), f"{place}, column {column}"), stop, place))
    if np.array_equal(rows[0], rows[1]):
        raise DataError(f"{place}: chosen and rejected are the same tokens; delete the row")
    return Preference(rows[0], rows[1], _margin(record.get("margin"), place))


def _chat(prompt: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and prompt and all(_is_message(entry) for entry in prompt):
        return [{"role": entry["role"], "content": entry["content"]} for entry in prompt]
    raise DataError(f"{place}, column prompt: expected text or chat messages [{{role, content}}, ...], got {prompt!r}")


def _text(response: Any, place: str) -> str:
    if isinstance(response, str):
        return response
    if isinstance(response, list) and len(response) == 1 and _is_message(response[0]):
        return str(response[0]["content"])
    raise DataError(f"{place}: expected text or one message [{{role, content}}], got {response!r}")


def _is_message(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("role"), str) and isinstance(entry.get("content"), str)


def _margin(value: Any, place: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise DataError(f"{place}, column margin: expected a number, at least 0, got {value!r}")
    return float(value)

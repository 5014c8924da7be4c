"""Rows of chat messages as token ids. Invariant: each row is tokenized once; every row that is left out is counted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_core.batch import TrainBatch, offsets_of
from verl_core.config.schema import RunConfig
from verl_core.data.reader import read_rows, records_of
from verl_core.data.row import Columns, checked_messages, present
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.sft.taught import ASSISTANT, taught_tokens
from verl_core.trajectory import Bool, Int32

_SHOWN = 5  # over-long rows listed in the error


@dataclass(frozen=True, slots=True)
class Lesson:
    """One row.

    Attributes:
        place: file and row.
        ids: int32 [L].
        learnt: bool [L]; the first token is never learnt.
    """

    place: str
    ids: Int32
    learnt: Bool


@dataclass(frozen=True, slots=True)
class Lessons:
    """The rows of a set, in file order, and how many were left out as over-long."""

    rows: list[Lesson]
    dropped: int = 0

    @property
    def digest(self) -> str:
        """Hex sha256 over ids and masks: the same rows in the same order."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(len(row.ids).to_bytes(8, "little") + row.ids.tobytes() + row.learnt.tobytes())
        return digest.hexdigest()

    def batch(self, chosen: Sequence[int]) -> TrainBatch:
        """The chosen rows; each is a group of its own, its prompt ends where the first learnt token begins."""
        rows = [self.rows[index] for index in chosen]
        starts = [int(np.argmax(row.learnt)) for row in rows]
        pairs = list(zip(rows, starts, strict=True))
        return TrainBatch(
            keys=[row.place for row in rows],
            uids=[str(index) for index in range(len(rows))],
            sessions=np.zeros(len(rows), dtype=np.int32),
            prompt_ids=np.concatenate([row.ids[:start] for row, start in pairs]),
            prompt_offsets=offsets_of(starts),
            response_ids=np.concatenate([row.ids[start:] for row, start in pairs]),
            response_offsets=offsets_of([len(row.ids) - start for row, start in pairs]),
            response_mask=np.concatenate([row.learnt[start:] for row, start in pairs]),
            scores=np.zeros(len(rows), dtype=np.float32),
        )


def load_lessons(config: RunConfig, files: Sequence[str], tokenizer: ChatTokenizer, max_rows: int) -> Lessons:
    """The rows of `files`, as `sft.*` and data.truncation say.

    Args:
        max_rows: keep the first ones; -1 all.

    Raises:
        DataError: a file or row cannot be used, rows are over-long, or none is left.
    """
    limit, total = config.sft.max_length, 0
    rows: list[Lesson] = []
    over_long: list[str] = []
    for place, messages in _chats(config, files, max_rows):
        total += 1
        ids, learnt = taught_tokens(messages, tokenizer, place)
        if len(ids) > limit:
            over_long.append(f"{place}: {len(ids)} tokens")
        else:
            rows.append(Lesson(place, ids, learnt))
    if over_long and config.data.truncation == "error":
        more = f" and {len(over_long) - _SHOWN} more" if len(over_long) > _SHOWN else ""
        raise DataError(
            f"{len(over_long)} of {total} rows are longer than sft.max_length={limit}: "
            f"{'; '.join(over_long[:_SHOWN])}{more}. Raise it, or set data.truncation=drop"
        )
    if not rows:
        raise DataError(f"no row of {', '.join(files)} is left to learn from; {len(over_long)} are over-long")
    return Lessons(rows, len(over_long))


def refuse_unfit(sets: Sequence[Lessons], positions: int) -> None:
    """Raise DataError if a row is longer than the model reads.

    Args:
        positions: tokens that the model reads; 0 = it does not say.
    """
    longest = max((row for lessons in sets for row in lessons.rows), key=lambda row: len(row.ids))
    if positions and len(longest.ids) > positions:
        raise DataError(
            f"{longest.place} has {len(longest.ids)} tokens, the model reads {positions} (max_position_embeddings). "
            f"Set sft.max_length={positions} and data.truncation=drop, shorten the data, or take another model in "
            "actor_rollout_ref.model.path"
        )


def _chats(config: RunConfig, files: Sequence[str], max_rows: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    key, given = config.sft.messages_key, 0
    if not key:
        for row in read_rows(files, Columns(config.data.prompt_key, config.data.reward_fn_key), max_rows):
            if row.ground_truth is None:
                raise DataError(f"{row.place}: no ground_truth, and sft.messages_key=null makes it the answer to learn")
            yield row.place, [*row.messages, {"role": ASSISTANT, "content": str(row.ground_truth)}]
        return
    for file in files:
        for place, record in records_of(file, (key,)):
            if given == max_rows:
                return
            given += 1
            messages = checked_messages(present(record, key, place), f"{place}, column {key}")
            _refuse_empty(messages, f"{place}, column {key}")
            yield place, messages


def _refuse_empty(messages: Sequence[dict[str, Any]], place: str) -> None:
    """An empty answer teaches to stop at once, an empty question teaches nothing. What a tool says may be empty."""
    for number, message in enumerate(messages):
        if message["role"] in ("user", ASSISTANT) and not (message["content"].strip() or message.get("tool_calls")):
            raise DataError(f"{place}: message {number} ({message['role']}) is empty; fill it or delete the row")

"""Which tokens of a chat are learnt. Invariant: exactly those that a policy would have sampled: of every message of the
assistant from behind the template's opening up to the end token, and nothing else.

What the template writes behind the end token (a line break, say) is never sampled, so it is not learnt. The chat is
tokenized as a whole; where its parts lie is found by tokenizing its beginnings, which must be beginnings in tokens too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.trajectory import Bool, Int32

ASSISTANT = "assistant"


def taught_tokens(messages: list[dict[str, Any]], tokenizer: ChatTokenizer, place: str) -> tuple[Int32, Bool]:
    """(ids int32 [L], learnt bool [L]) of the chat up to the end of the assistant's last message.

    Args:
        place: of the row, for messages.

    Raises:
        DataError: nobody answers, or the answer comes first; the template refuses the chat, writes no end token behind
            an answer, or writes earlier messages differently once later ones are there.
    """
    answers = [index for index, message in enumerate(messages) if message["role"] == ASSISTANT]
    if not answers or answers[0] == 0:
        why = "the first message is the assistant's" if answers else "no message is the assistant's"
        raise DataError(f"{place}: {why}, so there is nothing to learn; give a question and its answer")
    ids = tokenizer.encode_finished(messages[: answers[-1] + 1], place)
    learnt = np.zeros(len(ids), dtype=np.bool_)
    for index in answers:
        opened = tokenizer.encode_chat(messages[:index], place)
        closed = tokenizer.encode_finished(messages[: index + 1], place)
        if not (_begins(ids, opened) and _begins(ids, closed)) or len(closed) <= len(opened):
            raise DataError(
                f"{place}: the chat template of {tokenizer.name} writes the chat up to message {index} differently "
                "once the answer or later messages follow, so what a policy would see cannot be told. Split the row, "
                "so that each ends with the one answer to learn, or use a template that only appends"
            )
        ends = np.flatnonzero(ids[len(opened) : len(closed)] == tokenizer.eos_token_id)
        if not len(ends):
            raise DataError(
                f"{place}: the chat template of {tokenizer.name} puts no end token (id {tokenizer.eos_token_id}) "
                "behind the assistant's message, so a policy would never learn to stop. Name the token that it puts "
                "there as eos_token in tokenizer_config.json"
            )
        learnt[len(opened) : len(opened) + int(ends[-1]) + 1] = True
    last = int(np.flatnonzero(learnt)[-1]) + 1
    return ids[:last], learnt[:last]


def _begins(ids: NDArray[np.int32], start: NDArray[np.int32]) -> bool:
    return len(start) <= len(ids) and bool((ids[: len(start)] == start).all())

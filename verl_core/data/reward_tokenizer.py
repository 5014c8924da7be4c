"""Whether a reward model reads the policy's token ids. Invariant: ids are made again only for a model of another
vocabulary, which has no other way to read a response; everywhere else what was sampled is what is scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer, vocabulary_of
from verl_core.errors import DataError
from verl_core.trajectory import Int32


def own_tokenizer(policy_path: str, model_path: str) -> ChatTokenizer | None:
    """The reward model's tokenizer where it must be used; None where both have the same vocabulary.

    Raises:
        ModelError: a folder has no tokenizer; or the reward model's is another one and has no chat template.
    """
    if vocabulary_of(policy_path) == vocabulary_of(model_path):
        return None
    return load_tokenizer(model_path)


def answered_chat(tokenizer: ChatTokenizer, messages: Sequence[dict[str, Any]], answer: str, place: str) -> Int32:
    """int32 ids of the chat with its answer, by the reward model's own template.

    Raises:
        DataError: the template refuses it, or makes nothing of it.
    """
    from jinja2 import TemplateError

    chat = [*messages, {"role": "assistant", "content": answer}]
    try:
        ids = tokenizer.inner.apply_chat_template(chat, tokenize=True, return_dict=False)
    except TemplateError as error:
        raise DataError(f"{place}: the chat template of {tokenizer.name} refuses the answer: {error}") from error
    if not ids:
        raise DataError(f"{place}: the chat template of {tokenizer.name} makes no token of the answer")
    return np.asarray(ids, dtype=np.int32)

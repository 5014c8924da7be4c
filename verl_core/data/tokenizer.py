"""ChatTokenizer: a chat to token ids, by the model's own template. Invariant: prompts become ids here and only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_core.errors import DataError, ModelError
from verl_core.trajectory import Int32


class ChatTokenizer:
    """Tokenizer of a model folder.

    Args:
        inner: the transformers tokenizer; has a chat template and an end token.
        name: of the folder, for messages.
        tools: schemas that every chat is rendered with, as chat templates want them.
    """

    def __init__(self, inner: Any, name: str, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.inner, self.name, self.tools = inner, name, list(tools)

    @property
    def eos_token_id(self) -> int:
        """Token that ends a response."""
        return int(self.inner.eos_token_id)

    def encode_chat(self, messages: list[dict[str, Any]], place: str) -> Int32:
        """Prompt ids, int32 [P], with the template's opening of the assistant's turn at the end.

        Raises:
            DataError: the template refuses the messages (a role it does not know, for example), or gives no token.
        """
        ids = self._rendered(messages, place, tokenize=True)
        if not ids:
            raise DataError(f"{place}: the chat template of {self.name} makes no token of the prompt")
        return np.asarray(ids, dtype=np.int32)

    def encode_finished(self, messages: list[dict[str, Any]], place: str) -> Int32:
        """Ids of a chat as it stands, int32 [L], nothing opened at its end. Raises DataError like `encode_chat`."""
        return np.asarray(self._rendered(messages, place, tokenize=True, opened=False), dtype=np.int32)

    def render_chat(self, messages: list[dict[str, Any]], place: str) -> str:
        """The text whose ids `encode_chat` gives. Raises DataError: the template refuses the messages."""
        return str(self._rendered(messages, place, tokenize=False))

    def encode(self, text: str) -> list[int]:
        """Ids of text as it stands: nothing is added at either end."""
        return [int(token) for token in self.inner.encode(text, add_special_tokens=False)]

    def _rendered(self, messages: list[dict[str, Any]], place: str, tokenize: bool, opened: bool = True) -> Any:
        from jinja2 import TemplateError

        asked: dict[str, Any] = {"tokenize": tokenize, "add_generation_prompt": opened, "tools": self.tools or None}
        try:
            return self.inner.apply_chat_template(messages, **asked, **({"return_dict": False} if tokenize else {}))
        except TemplateError as error:
            raise DataError(f"{place}: the chat template of {self.name} refuses the prompt: {error}") from error

    def decode(self, token_ids: Sequence[int] | Int32, skip_special_tokens: bool = True) -> str:
        """Text of response ids."""
        ids = [int(token) for token in token_ids]
        return str(self.inner.decode(ids, skip_special_tokens=skip_special_tokens))

    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Texts of many responses."""
        return [self.decode(row, skip_special_tokens) for row in rows]


def load_tokenizer(path: str) -> ChatTokenizer:
    """Tokenizer of a model folder, or of a `.gguf` file. Nothing is fetched and no code of the folder is run.

    Raises:
        ModelError: no such folder, no tokenizer in it, no chat template, no end token.
    """
    place = Path(path)
    if not place.exists():
        raise ModelError(f"no model folder {path}; set actor_rollout_ref.model.path to a folder with a tokenizer")
    inner = _load(place)
    if not inner.chat_template:
        raise ModelError(
            f"{path} has no chat template; add chat_template.jinja (or chat_template in tokenizer_config.json), or use"
            " the model's instruct variant"
        )
    if inner.eos_token_id is None:
        raise ModelError(f"{path}: the tokenizer has no end token; set eos_token in tokenizer_config.json")
    return ChatTokenizer(inner, path)


def vocabulary_of(path: str) -> dict[str, int]:
    """Token -> id of a model folder's tokenizer, added tokens included. Raises ModelError: no usable tokenizer."""
    return {str(token): int(number) for token, number in _load(Path(path)).get_vocab().items()}


def _load(place: Path) -> Any:
    from transformers import AutoTokenizer

    folder, extra = (place.parent, {"gguf_file": place.name}) if place.is_file() else (place, {})
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **extra)
    except (OSError, ValueError, KeyError, TypeError) as error:  # what transformers raises for folders it cannot read
        raise ModelError(
            f"no usable tokenizer in {place}: copy tokenizer.json and tokenizer_config.json of the model there"
            f" ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0]

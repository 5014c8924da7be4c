"""ToolTurn: answers of tools as the ids that follow a sampled turn. Invariant: what was sampled is never tokenized
again; the ids of the answers are appended to it and stand for the chat template's own text between two turns.

How the ids are found. A short chat that ends in an assistant's turn, the answers after it, is rendered by the template
to text. Behind the assistant's words stands the token that ends its turn. The text is tokenized once up to that token
and once as a whole; since a special token separates what stands on its two sides, the shorter ids are a prefix of the
longer ones (this is checked every time), and the rest is the delta: the separator between turns that the policy does
not sample (such as the line feed after `<|im_end|>`), the answers in the template's dress, and the opening of the next
assistant's turn. Templates look at the place of a turn in the chat (the last one may keep its reasoning), so the text
up to the end of the turn is taken from the very rendering that has the answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError, ModelError

Side = Literal["left", "right", "middle"]

_SAID, _ASKED = "said-before-the-tool", "asked-before"
_CUT = "..."
_CHARS_PER_TOKEN = 64  # text is cut to this many characters per token first: a tool may give megabytes


class ToolTurn:
    """Answers of tools to ids.

    Args:
        tokenizer: of the policy.

    Raises:
        ModelError: the chat template does not know tools, or does not end a turn with a special token.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        inner = tokenizer.inner
        special = {*inner.all_special_tokens, *(str(added) for added in inner.added_tokens_decoder.values())}
        self._special = sorted(special, key=len, reverse=True)
        controls = {str(added) for added in inner.added_tokens_decoder.values() if added.special}
        told = sorted({*inner.all_special_tokens, *controls}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, told))) if told else None
        self._check_template()

    def ids(self, answers: Sequence[str]) -> list[int]:
        """Ids to append to a turn that ended, the opening of the next turn included.

        Args:
            answers: one per call, in order; they should come from `fitted`.

        Raises:
            ModelError: the template changes what stands before the answers.
        """
        text, end = self._rendered(answers)
        head, whole = self._tokenizer.encode(text[:end]), self._tokenizer.encode(text)
        if whole[: len(head)] != head:
            raise ModelError(
                f"the tokenizer of {self._tokenizer.name} joins the end of a turn with what follows; tool_agent needs "
                "a chat template that ends turns with a special token"
            )
        return whole[len(head) :]

    def fitted(self, answer: str, limit: int, side: Side) -> tuple[str, bool]:
        """The answer as text that may stand in a chat, and whether it was cut.

        Special tokens spelled out in it are broken by a space: no tool ends a turn or speaks for somebody else.

        Args:
            limit: tokens, the mark of the cut included.
            side: what stays: `left` the beginning, `right` the end, `middle` both.
        """
        text = answer.encode("utf-8", "replace").decode("utf-8")
        if long := len(text) > limit * _CHARS_PER_TOKEN:
            text = _pieces(text, limit * _CHARS_PER_TOKEN, side, _CUT)
        if self._control is not None:
            text = self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        ids = self._tokenizer.encode(text)
        if len(ids) <= limit:
            return text, long
        mark = _CUT if limit > len(self._tokenizer.encode(_CUT)) else ""
        for keep in range(limit, -1, -1):
            shorter = self._shortened(ids, keep, side, mark)
            if len(self._tokenizer.encode(shorter)) <= limit:
                return shorter, True
        return "", True

    def _shortened(self, ids: list[int], keep: int, side: Side, mark: str) -> str:
        """The text of `keep` ids; half a character at a cut is dropped."""
        first = {"left": keep, "right": 0, "middle": (keep + 1) // 2}[side]
        last = keep - first
        beginning = self._tokenizer.decode(ids[:first], skip_special_tokens=False).rstrip("\ufffd")
        end = self._tokenizer.decode(ids[len(ids) - last :], skip_special_tokens=False).lstrip("\ufffd")
        return beginning + mark + end

    def _rendered(self, answers: Sequence[str]) -> tuple[str, int]:
        """(text of the chat, where the assistant's turn is over)."""
        chat = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}]
        chat += [{"role": "tool", "content": answer} for answer in answers]
        try:
            text = self._tokenizer.render_chat(chat, "an answer of a tool")
        except DataError as error:
            raise ModelError(f"{error}; tool_agent needs a template with the role `tool`") from error
        start = text.find(_SAID) + len(_SAID)
        ending = next((token for token in self._special if token and text.startswith(token, start)), "")
        if start < len(_SAID) or not ending:
            raise ModelError(
                f"the chat template of {self._tokenizer.name} does not end the assistant's turn with a special token "
                f"right after its content (there is {text[start : start + 20]!r}); tool_agent cannot tell where it ends"
            )
        return text, start + len(ending)

    def _check_template(self) -> None:
        probe, tokenizer = "answer-of-a-tool", self._tokenizer
        text, end = self._rendered([probe])
        if probe not in text[end:]:
            raise ModelError(f"the chat template of {tokenizer.name} leaves out what a tool answers")
        if tokenizer.tools:
            chat = [{"role": "user", "content": _ASKED}]
            silent = ChatTokenizer(tokenizer.inner, tokenizer.name)
            if tokenizer.render_chat(chat, "a prompt") == silent.render_chat(chat, "a prompt"):
                raise ModelError(
                    f"the chat template of {tokenizer.name} says nothing of tools, so the policy would never learn "
                    "what it may call; use a template that reads `tools`"
                )
        self.ids([probe])


def _pieces(text: str, keep: int, side: Side, mark: str) -> str:
    first = {"left": keep, "right": 0, "middle": keep // 2}[side]
    return text[:first] + mark + text[len(text) - (keep - first) :]

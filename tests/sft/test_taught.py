"""Which tokens are learnt, by hand, and the templates that are refused."""

from __future__ import annotations

import pytest

from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.sft.taught import taught_tokens
from verl_core.warm_start.tokenizer import CHAT_TEMPLATE, make_tokenizer

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "1+1="},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "thanks"},
]


def tokenizer(template: str = CHAT_TEMPLATE) -> ChatTokenizer:
    inner = make_tokenizer()
    inner.chat_template = template
    return ChatTokenizer(inner, "tiny")


def shown(messages: list[dict[str, str]], template: str = CHAT_TEMPLATE) -> tuple[str, str]:
    """(the text of all ids, that of the learnt ones)."""
    tok = tokenizer(template)
    ids, learnt = taught_tokens(messages, tok, "row 0")
    return tok.decode(ids, False), tok.decode(ids[learnt], False)


def test_answers_with_their_end_tokens_are_learnt_and_nothing_else() -> None:
    text, learnt = shown(CHAT)
    assert text == (
        "<|system|>be brief<|end|><|user|>1+1=<|end|><|assistant|>2<|end|><|user|>sure?<|end|><|assistant|>yes<|end|>"
    )  # what follows the last answer is no context of anything
    assert learnt == "2<|end|>yes<|end|>"


def test_prompt_and_answer_are_those_of_a_rollout() -> None:
    tok = tokenizer()
    ids, learnt = taught_tokens(CHAT[1:3], tok, "row 0")
    prompt = tok.encode_chat(CHAT[1:2], "row 0")
    assert ids[~learnt].tolist() == prompt.tolist()
    assert ids[learnt].tolist() == [*tok.encode("2"), tok.eos_token_id]


def test_what_the_template_writes_behind_the_end_token_is_context_only() -> None:
    broken = CHAT_TEMPLATE.replace("+ '<|end|>' }}{% endfor %}{% if add", "+ '<|end|>\n' }}{% endfor %}{% if add")
    text, learnt = shown(CHAT[:5], broken)
    assert "2<|end|>\n<|user|>" in text
    assert text.endswith("yes<|end|>")
    assert learnt == "2<|end|>yes<|end|>"


def test_an_end_token_inside_an_answer_does_not_end_what_is_learnt() -> None:
    chat = [CHAT[1], {"role": "assistant", "content": "a<|end|>b"}]
    assert shown(chat)[1] == "a<|end|>b<|end|>"


@pytest.mark.parametrize(
    ("messages", "template", "message"),
    [
        (CHAT[:2], CHAT_TEMPLATE, "no message is the assistant's"),
        (CHAT[2:4], CHAT_TEMPLATE, "the first message is the assistant's"),
        (
            CHAT,
            "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
            "puts no end token",
        ),
        (
            CHAT,
            "{{ messages | length }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
            "differently once",
        ),
    ],
    ids=["no answer", "answer first", "no end", "history rewritten"],
)
def test_what_cannot_be_learnt_is_refused(messages: list[dict[str, str]], template: str, message: str) -> None:
    with pytest.raises(DataError, match=f"row 7: .*{message}"):
        taught_tokens(messages, tokenizer(template), "row 7")

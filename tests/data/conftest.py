"""A tokenizer folder that tests can count on: every byte is a token, roles are visible in the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('unknown role tool') }}{% endif %}"
    "{{ m['role'][0] + ':' + m['content'] + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)


def write_tokenizer(folder: Path, template: str | None = TEMPLATE, eos: str | None = "<end>") -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, **({"eos_token": eos} if eos else {}))
    if template:
        fast.chat_template = template
    fast.save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: str) -> ChatTokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def make_tokenizer() -> Any:
    return write_tokenizer

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from verl_core.config.schema.warm_start import WarmStartConfig
from verl_core.data.tokenizer import load_tokenizer
from verl_core.warm_start.model import make_tiny_policy
from verl_core.warm_start.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, make_tokenizer

TOKENIZER = make_tokenizer()


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    if not any(token in text for token in SPECIAL_TOKENS):
        assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(st.characters(min_codepoint=0, max_codepoint=127)))
def test_ascii_is_one_id_per_character(text: str) -> None:
    if not any(token in text for token in SPECIAL_TOKENS):
        assert len(TOKENIZER.encode(text)) == len(text)


def test_ids_are_dense_and_specials_come_last() -> None:
    vocabulary = TOKENIZER.get_vocab()
    assert sorted(vocabulary.values()) == list(range(VOCAB_SIZE))
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == list(range(256, VOCAB_SIZE))


def test_a_sum_is_a_prompt_of_seven_tokens() -> None:
    chat = [{"role": "user", "content": "3+4="}]
    ids = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["<|user|>", "3", "+", "4", "=", "<|end|>", "<|assistant|>"]
    assert TOKENIZER.decode(TOKENIZER.encode("7<|end|>"), skip_special_tokens=True) == "7"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = WarmStartConfig(hidden_size=32, num_layers=1)
    return make_tiny_policy(tmp_path_factory.mktemp("tiny") / "policy", config)


def test_the_folders_tokenizer_is_the_same(folder: Path) -> None:
    read = AutoTokenizer.from_pretrained(folder)
    text = "3+4=<|end|>é世\n 12  x"
    assert read.encode(text) == TOKENIZER.encode(text)
    assert (read.eos_token_id, read.pad_token_id) == (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4="}]
    ours = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert load_tokenizer(str(folder)).encode_chat(chat, "here").tolist() == ours

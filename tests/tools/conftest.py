"""Tokenizers with merges and three chat templates that differ in what stands between two turns."""

from __future__ import annotations

from typing import Any

import pytest

from verl_core.data.tokenizer import ChatTokenizer

TOOLS = [{"type": "function", "function": {"name": "calc", "description": "d", "parameters": {"properties": {}}}}]
_CORPUS = ["<tool_response>\n1776\n</tool_response>", "user\nassistant\nsystem\n", 'answer 12 {"name": "calc"}'] * 3
_LISTED = "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"

# Qwen's way: a line feed after each turn that nobody samples, neighbouring answers in one turn of the user, and
# reasoning that stays in the last turn only.
QWEN = (
    _LISTED + "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m['content'] + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif m['role'] == 'assistant' and loop.last %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n' + m['content'] + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Llama's way: nothing between turns, content trimmed, JSON around an answer.
LLAMA = (
    "{% if tools %}{{ '<|im_start|>system' + (tools | tojson) + '<|im_end|>' }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + ('ipython' if m['role'] == 'tool' else m['role']) + '\n\n' }}"
    "{{ ({'output': m['content']} | tojson) if m['role'] == 'tool' else m['content'] | trim }}{{ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
PLAIN = (
    _LISTED + "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {"qwen": QWEN, "llama": LLAMA, "plain": PLAIN}


def bpe(template: str, tools: list[dict[str, Any]] | None = None) -> ChatTokenizer:
    """Byte-level BPE with some hundred merges, three special tokens, and `<tool_call>` as an added one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    special = ("<|pad|>", "<|im_start|>", "<|im_end|>")
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<tool_call>", "</tool_call>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<|pad|>", eos_token="<|im_end|>")
    fast.chat_template = template
    return ChatTokenizer(fast, "bpe", TOOLS if tools is None else tools)


@pytest.fixture(scope="session", params=sorted(TEMPLATES))
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return bpe(TEMPLATES[request.param])


@pytest.fixture(scope="session")
def qwen() -> ChatTokenizer:
    return bpe(QWEN)

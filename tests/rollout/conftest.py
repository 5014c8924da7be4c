"""Tiny models for the rollout tests: hidden 64, 2 layers, byte-level tokenizer, chat template; made once a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before the first import of vLLM by any test of this folder: the same as process_environment() gives a server.
os.environ.update(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
    }
)

VOCAB, EOS, PAD = 320, 258, 256
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    """One token per UTF-8 byte and three specials: lossless, no merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    vocab |= {special: 256 + index for index, special in enumerate(specials)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in specials])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast


def tiny_policy(tied: bool, seed: int = 0) -> Any:
    """A random Llama; the initial spread is wide, so that distributions are not flat."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.08,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=PAD)
    return model


@pytest.fixture(scope="session")
def write_policy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """`write_policy(tied)` gives the folder of such a model (always the same one)."""
    folders: dict[bool, Path] = {}

    def write(tied: bool) -> Path:
        if tied not in folders:
            folders[tied] = tmp_path_factory.mktemp("policy")
            tiny_policy(tied).save_pretrained(folders[tied])
            byte_tokenizer().save_pretrained(folders[tied])
        return folders[tied]

    return write


@pytest.fixture(scope="session")
def policy_folder(write_policy: Callable[[bool], Path]) -> Path:
    """Folder of the tied tiny model."""
    return write_policy(True)


@pytest.fixture(scope="session")
def make_policy() -> Callable[..., Any]:
    """`make_policy(tied, seed)` gives a torch model; seed 0 equals the one `write_policy(tied)` saved."""
    return tiny_policy


@pytest.fixture(autouse=True, scope="module")
def _torch_threads_stay_settable() -> Iterator[None]:
    """vLLM on a CPU replaces torch.set_num_threads with a function that does nothing, for the whole process."""
    import torch

    real = torch.set_num_threads
    yield
    torch.set_num_threads = real

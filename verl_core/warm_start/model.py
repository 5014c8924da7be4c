"""The tiny policy itself: a small Llama-type model in a complete Hugging Face folder, random weights from a seed."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from verl_core.config.schema.warm_start import WarmStartConfig
from verl_core.errors import ConfigError
from verl_core.models.folder import published
from verl_core.warm_start.tokenizer import MAX_LENGTH, VOCAB_SIZE, make_tokenizer

HEAD_DIM = 32  # the smallest head the CPU inference kernels accept


def make_tiny_policy(folder: str | Path, config: WarmStartConfig) -> Path:
    """Write an untrained tiny policy (config, weights, tokenizer, chat template, generation config) and return its
    folder.

    Raises:
        ConfigError: `hidden_size` is not a multiple of 32.
    """
    tokenizer = make_tokenizer()
    model = build_model(tokenizer, config)
    with published(Path(folder)) as scratch:
        write_policy(model, tokenizer, scratch)
    return Path(folder)


def build_model(tokenizer: PreTrainedTokenizerFast, config: WarmStartConfig) -> LlamaForCausalLM:
    """Float32 model with weights drawn from `config.seed`; the caller's random state is left as it was.

    The output layer is a tensor of its own (`tie_word_embeddings=False`): the CPU inference engine keeps a packed
    copy of a tied one, which every in-place weight update would leave stale.
    """
    if config.hidden_size % HEAD_DIM:
        raise ConfigError(f"warm_start.hidden_size must be a multiple of {HEAD_DIM}, got {config.hidden_size}")
    heads = config.hidden_size // HEAD_DIM
    shape = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = LlamaForCausalLM(shape)
    # vLLM takes the end token from generation_config.json, not from the tokenizer.
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def write_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer into an existing folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

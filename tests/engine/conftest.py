"""A tiny Llama on disk, a batch over it, and configurations that fit both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from verl_core.batch import TrainBatch
from verl_core.config.schema import RunConfig
from verl_core.trajectory import Segment, Trajectory

VOCABULARY = 48

MakeConfig = Callable[..., RunConfig]
MakeBatch = Callable[..., TrainBatch]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a Llama, hidden 64, 2 layers, tied embeddings, with a character tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,  # far from uniform, so that every error shows
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<eos>": 1, **{chr(95 + index): index for index in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def make_config(tiny_model: str) -> MakeConfig:
    """Configuration on the CPU; keywords override fields of `actor_rollout_ref.actor`, `optim_*` those of its
    optimizer.
    """

    def make(world: int = 1, **overrides: Any) -> RunConfig:
        config = RunConfig()
        config.trainer.device = "cpu"
        config.trainer.n_gpus_per_node = world
        config.trainer.init_timeout_s = 120.0
        config.data.train_batch_size = 4
        config.data.max_response_length = 12
        model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
        model.path = tiny_model
        actor.ppo_mini_batch_size = 2
        actor.call_timeout_s = 60.0
        actor.optim.lr = 1e-3
        actor.optim.eps = (
            1e-5  # a first AdamW step is the gradient's sign: rounding of tiny gradients must not decide it
        )
        for name, value in overrides.items():
            section, field = (actor.optim, name.removeprefix("optim_")) if name.startswith("optim_") else (actor, name)
            if name == "temperature":
                section, field = config.actor_rollout_ref.rollout, name
            if name == "enable_gradient_checkpointing":
                section, field = model, name
            if not hasattr(section, field):
                raise AttributeError(name)
            setattr(section, field, value)
        return config

    return make


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Groups of rows of uneven length with tool tokens masked, NaN under every mask; all columns of an update
    present.
    """

    def make(groups: int = 4, n: int = 3, seed: int = 0, tools: bool = True) -> TrainBatch:
        random = np.random.default_rng(seed)
        rows = [_trajectory(random, group, session, tools) for group in range(groups) for session in range(n)]
        batch = TrainBatch.from_trajectories(rows, [0.0] * len(rows))
        for name in ("old_log_probs", "ref_log_probs", "advantages"):
            values = random.normal(size=len(batch.response_ids)).astype(np.float32)
            values = -2 + 0.3 * values if name.endswith("log_probs") else values
            batch = batch.with_column(name, np.where(batch.response_mask, values, np.nan).astype(np.float32))
        return batch

    return make


def _trajectory(random: np.random.Generator, group: int, session: int, tools: bool) -> Trajectory:
    prompt, response = int(random.integers(1, 7)), int(random.integers(1, 12))
    mask = random.random(response) < 0.8 if tools else np.ones(response, dtype=bool)
    mask[-1] = True
    return Trajectory(
        uid=f"{group:032x}",
        session=session,
        index=0,
        ordinal=group,
        prompt_ids=random.integers(2, VOCABULARY, prompt).astype(np.int32),
        response_ids=random.integers(2, VOCABULARY, response).astype(np.int32),
        response_mask=mask,
        rollout_log_probs=np.full(response, np.nan, dtype=np.float32),
        segments=(Segment(0, response),),
        stop_reason="stop",
        data_source="test",
    )

"""What the tests of the agent side share: tiny model, prompts, fake client, odd agent loops (importable by path)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from verl_core.config.schema import RunConfig
from verl_core.rollout.interface import Generation, LLMClient, SamplingParams
from verl_core.rollout.single_turn import SingleTurnAgent
from verl_core.trajectory import Prompt, Segment, Trajectory

VOCAB, END = 48, 2


def tiny_model(folder: Path, seed: int = 0, std: float = 0.3) -> Path:
    """A Llama of two layers with weights large enough that its distributions are far from uniform."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=std,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(shape)
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=0)
    model.save_pretrained(folder)
    return folder


def config_of(**rollout: object) -> RunConfig:
    """prompt 32 + response 16 tokens; scripted engine; `rollout` overrides actor_rollout_ref.rollout."""
    config = RunConfig()
    config.data.max_prompt_length, config.data.max_response_length = 32, 16
    config.actor_rollout_ref.rollout.name = "scripted"
    for key, value in rollout.items():
        assert key in vars(config.actor_rollout_ref.rollout)
        setattr(config.actor_rollout_ref.rollout, key, value)
    return config


def prompt_of(number: int, n: int = 4, validation: bool = False, **extra: object) -> Prompt:
    """Prompt `number`, six tokens that depend on it."""
    ids = np.random.default_rng(number).integers(3, VOCAB, 6).astype(np.int32)
    uid = f"{number:032x}"
    return Prompt(
        uid, uid, 0, number, number, 1, n, ids, "tests", "42", extra_info=dict(extra), validation=validation
    )  # fmt: skip


class FakeClient:
    """LLMClient that answers at once: as many tokens as the session's last digit + 1, log-prob -0.5, version 3."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...], SamplingParams]] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        self.calls.append((request_id, tuple(prompt_ids), params))
        length = int(request_id.rsplit("_", 1)[1]) % 10 + 1
        await asyncio.sleep(0)
        return Generation((5,) * length, (-0.5,) * length, "stop", (Segment(3, length),))


class OddAgent(SingleTurnAgent):
    """Does to session k what `extra_info[str(k)]` says."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)

    async def run(self, prompt: Prompt, session: int, client: LLMClient) -> list[Trajectory]:
        order = prompt.extra_info.get(str(session), "")
        if order == "raise":
            raise ValueError("user code is broken")
        if order == "hang":
            await asyncio.sleep(3600)
        if order == "deaf":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        if order == "cancel":
            raise asyncio.CancelledError
        if order == "slow":
            await asyncio.sleep(0.3)
        found = await super().run(prompt, session, client)
        if order == "nothing":
            return []
        if order == "foreign":
            found[0].uid = "f" * 32
        if order == "nan":
            found[0].rollout_log_probs[0] = np.nan
        if order == "unstorable":
            found[0].extra["what"] = object()
        return found

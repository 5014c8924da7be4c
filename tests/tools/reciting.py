"""Policies that say what a test wants, without a model or with one: every turn is known, everything else is real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.rollout.local import CutEngine
from verl_core.config.schema import RunConfig
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.scripted_model import ScriptedModel
from verl_core.trajectory import Prompt, Segment
from verl_core.warm_start.tokenizer import make_tokenizer

INNER = make_tokenizer()
END = int(INNER.eos_token_id)
PROMPT = "<|system|>echo(text,wait,often)<|end|><|user|>37*48=<|end|><|assistant|>"


def ids_of(text: str) -> list[int]:
    """Special tokens by their names."""
    return [int(token) for token in INNER.encode(text, add_special_tokens=False)]


def config_of(folder: Path, response: int = 256, **multi_turn: Any) -> RunConfig:
    """Tool agent with the tools of tool_cases, json calls, over the tokenizer in `folder`."""
    INNER.save_pretrained(folder)
    config = RunConfig()
    config.data.max_prompt_length, config.data.max_response_length = 64, response
    config.actor_rollout_ref.model.path = str(folder)
    rollout = config.actor_rollout_ref.rollout
    rollout.name, rollout.agent.default_agent_loop, rollout.seed = "scripted", "tool_agent", 11
    settings = rollout.multi_turn
    settings.enable, settings.format, settings.max_tool_response_length = True, "json", 40
    settings.tools = ["tests.tools.tool_cases.Echo"]
    for key, value in multi_turn.items():
        assert key in vars(settings)
        setattr(settings, key, value)
    return config


def prompt_of(text: str = PROMPT) -> Prompt:
    uid = f"{7:032x}"
    return Prompt(uid, uid, 0, 7, 7, 1, 4, np.asarray(ids_of(text), np.int32), "tests", "1776")


def call(text: str, name: str = "echo", **more: Any) -> str:
    """A turn that makes a call."""
    import json

    return json.dumps({"name": name, "arguments": {"text": text, **more}}, separators=(",", ":"))


class Reciting:
    """LLMClient: turn k is `turns[k]` and an end token, cut to max_tokens; log-prob -0.01 x place; version 3 + k."""

    def __init__(self, *turns: str) -> None:
        self.turns = list(turns)
        self.calls: list[tuple[str, list[int], SamplingParams]] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        turn = len(self.calls)
        self.calls.append((request_id, list(prompt_ids), params))
        whole = [*ids_of(self.turns[turn]), END]
        ids = whole[: params.max_tokens]
        log_probs = tuple(-0.01 * (place + 1) for place in range(len(ids)))
        reason = "stop" if len(ids) == len(whole) else "length"
        return Generation(tuple(ids), log_probs, reason, (Segment(3 + turn, len(ids)),))  # type: ignore[arg-type]


class RecitingEngine(CutEngine):
    """Samples the given turns whatever the model thinks; the log-probs are what the model thinks of them. Attempt i is
    cut off after cuts[i] tokens; afterwards the version counts up, as if weights had come."""

    def __init__(self, config: RunConfig, folder: str, turns: Sequence[str], cuts: Sequence[int] = ()) -> None:
        super().__init__(config, folder, cuts)
        self.turns = [[*ids_of(turn), END] for turn in turns]

    def _admit(self, *arguments: Any) -> Any:
        request = super()._admit(*arguments)
        self.version += request.cut.is_set()  # cut before its first token
        return request

    def _next_token(self, model: ScriptedModel, request: Any) -> None:
        if request.version != self.version:
            request.version, request.state = self.version, None
            request.first, request.added = (*request.prompt, *request.tokens), ()
        request.state = model.after(request.first, request.added, request.state)
        opened = len(request.prompt) - request.prompt[::-1].index(ids_of("<|assistant|>")[0])
        turn = request.prompt.count(ids_of("<|assistant|>")[0]) - 1
        said = len(request.prompt) - opened + len(request.tokens)
        token = self.turns[turn][said]
        request.added = (*request.added, token)
        request.tokens.append(token)
        request.log_probs.append(float(torch.log_softmax(request.state.logits, -1)[token]))
        request.versions.append(request.version)
        self._cut(request)
        if request.cut.is_set():
            self.version += 1

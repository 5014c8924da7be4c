"""ScriptedEngine: a deterministic inference engine without vLLM, for exact tests and simulations; never a default.

Invariant: a request's tokens and log-probs are bit for bit a function of (weights, prompt, parameters with their
seed), and of the request's id where rollout.scripted_lengths draws how long it becomes. What else runs, in which order,
and how often it is looked at changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import torch

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead, ModelError, RolloutError, WeightError
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.rollout.prefix_states import PrefixState
from verl_core.rollout.scripted_lengths import length_draw
from verl_core.rollout.scripted_model import ScriptedModel
from verl_core.rollout.scripted_sampling import choose
from verl_core.rollout.scripted_slots import Slots
from verl_core.trajectory import Segment, StopReason
from verl_core.weights.adapter import served_adapter
from verl_core.weights.interface import WeightManifest
from verl_core.weights.receiving import received

_SLICE_TOKENS = 16  # tokens of one request before the next one gets its turn
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class _Request:
    """One generation under way. `first` was read in one pass under `version`; `added` came token by token after it.
    `length` is what the whole response shall have, earlier attempts included; `due` when the newest token was due."""

    prompt: tuple[int, ...]
    params: SamplingParams
    limit: int
    generator: torch.Generator
    length: int | None = None
    due: float = 0.0
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    version: int = -1
    first: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    state: PrefixState | None = None

    def result(self, reason: StopReason) -> Generation:
        """What there is so far."""
        segments = tuple(Segment(version, len(list(run))) for version, run in groupby(self.versions))
        return Generation(tuple(self.tokens), tuple(self.log_probs), reason, segments)


class ScriptedEngine:
    """RolloutEngine over a torch model on one worker thread; the loop stays free to answer abort and health.

    Args:
        config: a token takes rollout.scripted_delay_s, beside other requests, as on a real engine; at most
            rollout.max_num_seqs requests run, the others wait, longest first.
        model_path: Hugging Face folder.
    """

    def __init__(self, config: RunConfig, model_path: str) -> None:
        self.version = 0
        self._rollout, self._max_len, self._path = config.actor_rollout_ref.rollout, config.max_model_len, model_path
        self._thread = ThreadPoolExecutor(1, "scripted-engine", initializer=torch.set_num_threads, initargs=(1,))
        self._loaded: ScriptedModel | None = None
        self._running: set[_Request] = set()
        self._slots = Slots(self._rollout.max_num_seqs)
        self._lengths = length_draw(config)
        self._adapter = served_adapter(config.actor_rollout_ref.model)
        self._awake = asyncio.Event()
        self._closed = False
        self._staged: tuple[int, dict[str, torch.Tensor]] | None = None

    async def start(self) -> None:
        """Load the model. Raises ModelError: lengths are drawn, and the model has no end token to give them."""
        loaded = await self._in_thread(lambda: ScriptedModel(self._path, self._adapter))
        if self._lengths is not None and not loaded.end_ids:
            raise ModelError(
                f"{self._path} names no end token, and rollout.scripted_lengths needs one. Set eos_token_id in its "
                "generation_config.json"
            )
        self._loaded = loaded
        self._awake.set()

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """One completion, `max_tokens` cut to what fits max_model_len. While asleep it waits, up to
        request_timeout_s."""
        request = self._admit(request_id, prompt_ids, params)
        parked = Deadline(f"request {request_id} at a sleeping engine", self._rollout.request_timeout_s)
        self._running.add(request)
        slot = self._slots.ask(params.since)
        try:
            await self._or_cut(request, slot)
            while True:
                await self._until_awake(request, parked)
                await self._pace(request)
                reason = await self._in_thread(lambda: self._advance(request))
                if reason is not None:
                    return request.result(reason)
        finally:
            request.cut.set()  # a cancelled request stops at its next token
            self._running.discard(request)
            self._slots.give_back(slot)

    async def abort_all(self) -> int:
        """Cut off what runs; each request returns at its next token."""
        running = list(self._running)
        for request in running:
            request.cut.set()
        return len(running)

    async def sleep(self, level: int = 1) -> None:
        """Stop at the next token of each request; returns when no request computes any more."""
        self._awake.clear()
        await self._in_thread(lambda: None)

    async def wake(self) -> None:
        """Go on where `sleep` stopped."""
        self._awake.set()

    async def stage_weights(self, manifest: WeightManifest) -> None:
        """Receive and check on another thread than the one that computes."""
        self._staged = None
        tensors = await asyncio.to_thread(self._received, manifest)
        self._staged = manifest.version, tensors

    async def swap_weights(self) -> None:
        """Between two tokens. Requests in flight continue under the new weights, from recomputed states."""
        if self._staged is None:
            raise WeightError("no weights are staged; publish them again")
        (version, tensors), self._staged = self._staged, None
        await self._in_thread(lambda: self._install(version, tensors))

    async def update_weights(self, manifest: WeightManifest) -> None:
        """Both."""
        await self.stage_weights(manifest)
        await self.swap_weights()

    async def health(self) -> None:
        """Alive unless shut down."""
        self._model()

    async def shutdown(self) -> None:
        """End the thread; requests in flight fail with EngineDead."""
        self._closed = True
        self._awake.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    # ---- on the loop

    def _model(self) -> ScriptedModel:
        if self._loaded is None or self._closed:
            raise EngineDead("the scripted engine is not started, or was shut down")
        return self._loaded

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise EngineDead("the scripted engine was shut down")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _admit(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> _Request:
        model, prompt = self._model(), tuple(int(token) for token in prompt_ids)
        if not prompt or min(prompt) < 0 or max(prompt) >= model.vocab_size:
            raise RolloutError(
                f"request {request_id}: the prompt is empty or has ids outside 0..{model.vocab_size - 1}"
            )
        limit = min(params.max_tokens, self._max_len - len(prompt))
        if limit < 1:
            raise RolloutError(
                f"request {request_id}: {len(prompt)} prompt tokens and max_tokens {params.max_tokens} leave nothing "
                f"to generate in max_model_len {self._max_len}"
            )
        length = None if self._lengths is None else self._lengths.of(request_id)
        return _Request(prompt, params, limit, torch.Generator().manual_seed(params.seed), length)

    async def _until_awake(self, request: _Request, parked: Deadline) -> None:
        if self._awake.is_set() or request.cut.is_set():
            return
        request.due = 0.0
        awake = asyncio.ensure_future(self._awake.wait())
        try:
            if not await self._or_cut(request, awake, parked.left):
                raise parked.expired()
        finally:
            awake.cancel()

    async def _or_cut(self, request: _Request, wanted: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
        """Wait for `wanted`, or for the request to be cut off; False when the time is over."""
        cut = asyncio.ensure_future(request.cut.wait())
        try:
            done, _ = await asyncio.wait([wanted, cut], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut.cancel()
        return bool(done)

    async def _pace(self, request: _Request) -> None:
        """Wait until the next token is due, a delay after the one before it was; one that came late, because this
        machine is slow, does not move the next. A cut loses the token under way."""
        delay, now = self._rollout.scripted_delay_s, time.monotonic()
        if delay > 0:
            request.due = (request.due or now) + delay
            with suppress(TimeoutError):
                await asyncio.wait_for(request.cut.wait(), max(0.0, request.due - now))

    # ---- on the worker thread

    def _advance(self, request: _Request) -> StopReason | None:
        """Some more tokens; the reason when the request is over."""
        model = self._model()
        for _ in range(1 if self._rollout.scripted_delay_s > 0 else _SLICE_TOKENS):
            if request.cut.is_set():
                return "abort"
            if self._closed or not self._awake.is_set():
                return None
            self._next_token(model, request)
            if request.tokens[-1] in model.end_ids:
                return "stop"
            if len(request.tokens) == request.limit:
                return "length"
        return None

    def _next_token(self, model: ScriptedModel, request: _Request) -> None:
        if request.version != self.version:  # first token, or the weights changed: what was read is void
            request.version, request.state = self.version, None
            request.first, request.added = (*request.prompt, *request.tokens), ()
        request.state = model.after(request.first, request.added, request.state)
        barred = self._barred(model, request)
        token, log_prob = choose(request.state.logits, request.params, request.generator, barred)
        request.added = (*request.added, token)
        request.tokens.append(token)
        request.log_probs.append(log_prob)
        request.versions.append(request.version)

    def _barred(self, model: ScriptedModel, request: _Request) -> torch.Tensor | None:
        """What may not come next in a response of a drawn length: an end token before its last place, others there."""
        if request.length is None:
            return None
        last = request.params.done + len(request.tokens) + 1 >= request.length
        return ~model.ends if last else model.ends

    def _install(self, version: int, tensors: dict[str, torch.Tensor]) -> None:
        self._model().install(tensors)
        self.version = version

    # ---- on any thread

    def _received(self, manifest: WeightManifest) -> dict[str, torch.Tensor]:
        tensors = received(manifest)  # refuses what was sent from device to device
        return self._model().checked({name: tensor.float().clone() for name, tensor in tensors})

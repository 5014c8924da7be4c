"""RolloutEngine on vLLM's LLMEngine inside this process: for CPUs, where it starts in a second after the import.

Invariant: a request is in `_waiting` from submission to its one answer; whoever takes it out answers it.
No child process: the engine lives and dies with the server actor.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead, RolloutError, WeightError
from verl_core.rollout.engines.staging import Account, until_staged
from verl_core.rollout.engines.step_loop import StepLoop
from verl_core.rollout.engines.vllm_adapter import adapter_request
from verl_core.rollout.engines.vllm_args import engine_arguments, process_environment, stop_token_ids
from verl_core.rollout.engines.vllm_request import RequestLimits, priority, to_generation
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.weights.adapter import served_adapter
from verl_core.weights.interface import PULLED, WeightManifest
from verl_core.weights.manifest import to_dict

T = TypeVar("T")


class VllmInprocEngine:
    """See RolloutEngine. Owner: LLMServer."""

    def __init__(self, config: RunConfig) -> None:
        self.version = 0
        self._config, self._adapter = config, served_adapter(config.actor_rollout_ref.model)
        self._waiting: dict[str, asyncio.Future[Generation]] = {}
        self._serial = itertools.count()
        self._tainted = False
        self._staged: int | None = None
        self._limits: RequestLimits | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps = StepLoop(self._build, self._deliver, self._on_death)

    async def start(self) -> None:
        """See RolloutEngine. Raises RolloutError with vLLM's reason when it does not come up."""
        self._loop = asyncio.get_running_loop()
        deadline = Deadline("vLLM to load the model", self._config.trainer.init_timeout_s)
        self._steps.start()
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._steps.built), deadline.left)
        except TimeoutError as error:
            raise deadline.expired() from error
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise RolloutError(f"vLLM did not start: {error}") from error

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """See RolloutEngine."""
        if self._limits is None or self._loop is None:
            raise RolloutError("the engine was not started")
        ids, sampling = self._limits.check(request_id, prompt_ids, params), self._limits.sampling(params)
        name = f"{request_id}#{next(self._serial)}"  # a retried request may meet its own ghost
        answer: asyncio.Future[Generation] = self._loop.create_future()
        self._waiting[name] = answer
        try:
            adapter = adapter_request(self._adapter)
            added = self._steps.submit(
                lambda engine: engine.add_request(
                    name, _tokens(ids), sampling, lora_request=adapter, priority=priority(params)
                )
            )
            added.add_done_callback(lambda done: self._refused(name, done.exception()))
            return await answer
        finally:
            if self._waiting.pop(name, None) is not None:  # unanswered: cancelled, or the loop is over
                self._forget(name)

    async def abort_all(self) -> int:
        """See RolloutEngine."""
        return await self._command(self._abort_now)

    async def sleep(self, level: int = 1) -> None:
        """See RolloutEngine: stops stepping; a CPU has no device memory to give back, so the levels are alike."""
        await self._command(lambda _: self._set_paused(True))

    async def wake(self) -> None:
        """See RolloutEngine."""
        await self._command(lambda _: self._set_paused(False))

    async def stage_weights(self, manifest: WeightManifest) -> None:
        """See RolloutEngine."""
        self._staged = None
        if manifest.backend not in PULLED:
            raise WeightError(f"an engine on a CPU takes weights through shm or store, not {manifest.backend}")
        seconds = self._config.actor_rollout_ref.rollout.request_timeout_s
        began = await self._command(lambda engine: _ask_worker(engine, "verl_stage", to_dict(manifest)))
        await until_staged(
            manifest.version,
            began,
            lambda: self._command(lambda engine: _ask_worker(engine, "verl_staged")),
            Deadline(f"weight version {manifest.version} to be received", seconds),
        )
        self._staged = manifest.version

    async def swap_weights(self) -> None:
        """See RolloutEngine."""
        if self._staged is None:
            raise WeightError("no weights are staged; publish them again")
        version, self._staged = self._staged, None
        await self._command(lambda engine: self._swap(engine, version))

    async def update_weights(self, manifest: WeightManifest) -> None:
        """See RolloutEngine."""
        await self.stage_weights(manifest)
        await self.swap_weights()

    async def health(self) -> None:
        """See RolloutEngine."""
        self._steps.check()

    async def shutdown(self) -> None:
        """See RolloutEngine."""
        await asyncio.to_thread(self._steps.stop)

    async def _command(self, command: Callable[[Any], T]) -> T:
        """Run on the step loop. Bounded by the loop itself: it either runs the command or fails it when it ends."""
        deadline = Deadline("the vLLM step loop", self._config.actor_rollout_ref.rollout.request_timeout_s)
        future = asyncio.wrap_future(self._steps.submit(command))
        try:
            return await asyncio.wait_for(future, deadline.left)
        except TimeoutError as error:
            raise deadline.expired() from error

    # Below: on the step loop's thread.

    def _build(self) -> Any:
        for name, value in process_environment(self._config, "cpu").items():
            os.environ.setdefault(name, value)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        gc.collect()
        gc.freeze()  # vLLM collects five times while it starts; the imported heap need not be walked each time
        engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(self._config, "cpu")))
        engine.set_weight_version(str(self.version))
        if self._adapter is not None:
            engine.collective_rpc("verl_start_adapter")
        model = engine.vllm_config.model_config
        stops = tuple(stop_token_ids(self._config.actor_rollout_ref.model.path))
        self._limits = RequestLimits(int(model.max_model_len), int(model.get_vocab_size()), stops)
        return engine

    def _set_paused(self, paused: bool) -> None:
        self._steps.paused = paused

    def _abort_now(self, engine: Any) -> int:
        """LLMEngine drops what an aborted request has so far, so its output is made first."""
        from vllm.v1.engine import FinishReason

        states = list(engine.output_processor.request_states.values())
        outputs = [state.make_request_output([], None, FinishReason.ABORT, None) for state in states]
        engine.abort_request([state.external_req_id for state in states])
        self._deliver(outputs)
        return len(outputs)

    def _take(self, engine: Any, version: int) -> None:
        engine.collective_rpc("start_weight_update")
        try:
            engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version}})
        except (ValueError, RuntimeError, OSError) as error:
            raise WeightError(f"weight version {version} cannot be received: {error}") from error

    def _swap(self, engine: Any, version: int) -> None:
        if self._adapter is None:
            self._take(engine, version)
        try:
            if self._adapter is None:
                engine.collective_rpc("finish_weight_update")
            else:
                engine.collective_rpc("verl_swap_adapter", args=(version,))
            if self._tainted:
                engine.collective_rpc("verl_zero_kv")
            engine.reset_prefix_cache(reset_running_requests=True)
            engine.set_weight_version(str(version))
        except WeightError:
            raise  # nothing was touched
        except Exception as error:
            raise EngineDead(f"loading weight version {version} broke the engine: {error!r}") from error
        self._tainted, self.version = False, version

    def _deliver(self, outputs: list[Any]) -> None:
        if self._loop is not None and outputs:
            self._loop.call_soon_threadsafe(self._answer, outputs)

    def _on_death(self, error: BaseException) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_all, error)

    # Below: on the event loop.

    def _answer(self, outputs: list[Any]) -> None:
        for output in outputs:
            answer = self._waiting.pop(output.request_id, None)
            if answer is None or answer.done():
                continue
            try:
                answer.set_result(to_generation(output))
            except RolloutError as error:
                self._tainted = True
                answer.set_exception(error)

    def _fail_all(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def _refused(self, name: str, error: BaseException | None) -> None:
        """Called on the step loop when a request was added, or was not."""
        if error is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._fail_one, name, error)

    def _fail_one(self, name: str, error: BaseException) -> None:
        answer = self._waiting.pop(name, None)
        if answer is not None and not answer.done():
            known = isinstance(error, RolloutError)
            answer.set_exception(error if known else RolloutError(f"vLLM refused request {name}: {error}"))

    def _forget(self, name: str) -> None:
        """The caller is gone: free the engine's side."""
        try:
            self._steps.submit(lambda engine: engine.abort_request([name]))
        except EngineDead:
            return  # with the engine went the request


def _tokens(ids: list[int]) -> Any:
    from vllm.inputs import tokens_input

    return tokens_input(ids)


def _ask_worker(engine: Any, method: str, *arguments: Any) -> list[Account]:
    try:
        accounts: list[Account] = engine.collective_rpc(method, args=arguments)
    except ValueError as error:
        raise WeightError(f"weights cannot be received: {error}") from error
    return accounts

"""RolloutEngine on vLLM's AsyncLLM: engine and workers in processes of their own; the choice for GPUs.

Invariant: no call to the engine outlives it. A dead engine answers pending generations by itself, but a pending control
call would wait for ever, so every control call is raced against the engine's death and a deadline.

Tested here on a CPU (shared memory, sleep levels without memory effect). The device branches (`transfer`, waking
weights before a push, sleep level 2) have not been run: they need GPUs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead, RolloutError, VerlError, WeightError
from verl_core.rollout.engines.staging import Account, until_staged
from verl_core.rollout.engines.vllm_adapter import adapter_request
from verl_core.rollout.engines.vllm_args import engine_arguments, process_environment, stop_token_ids
from verl_core.rollout.engines.vllm_request import RequestLimits, priority, to_generation
from verl_core.rollout.interface import Generation, SamplingParams
from verl_core.weights.adapter import served_adapter
from verl_core.weights.interface import PULLED, WeightManifest
from verl_core.weights.manifest import to_dict

T = TypeVar("T")
_LOOK_S = 0.25


class VllmAsyncEngine:
    """See RolloutEngine. Owner: LLMServer."""

    def __init__(self, config: RunConfig, device: str) -> None:
        self.version = 0
        self._config, self._device = config, device
        self._adapter = served_adapter(config.actor_rollout_ref.model)
        self._llm: Any = None
        self._limits: RequestLimits | None = None
        self._serial, self._running = itertools.count(), 0
        self._asleep, self._weights_lost, self._tainted = 0, False, False
        self._staged: int | None = None

    async def start(self) -> None:
        """See RolloutEngine. Raises RolloutError with vLLM's reason when it does not come up."""
        deadline = Deadline("vLLM to load the model", self._config.trainer.init_timeout_s)
        try:
            self._llm = await asyncio.wait_for(asyncio.to_thread(self._build), deadline.left)
        except TimeoutError as error:
            raise deadline.expired() from error
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise RolloutError(f"vLLM did not start: {error}") from error
        model = self._llm.model_config
        stops = tuple(stop_token_ids(self._config.actor_rollout_ref.model.path))
        self._limits = RequestLimits(int(model.max_model_len), int(model.get_vocab_size()), stops)
        await self._control("set the weight version", self._llm.update_weight_version(str(self.version)))
        if self._adapter is not None:
            try:
                await self._control("take the adapter", self._llm.collective_rpc("verl_start_adapter"))
            except VerlError:
                raise
            except Exception as error:
                raise RolloutError(f"vLLM did not take the adapter: {error}") from error

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """See RolloutEngine."""
        if self._limits is None:
            raise RolloutError("the engine was not started")
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        ids, sampling = self._limits.check(request_id, prompt_ids, params), self._limits.sampling(params)
        name, last = f"{request_id}#{next(self._serial)}", None
        self._running += 1
        try:
            adapter = adapter_request(self._adapter)
            async for output in self._llm.generate(
                tokens_input(ids), sampling, name, lora_request=adapter, priority=priority(params)
            ):
                last = output
        except EngineDeadError as error:
            raise EngineDead(f"the inference engine died while {request_id} ran") from error
        except VLLMValidationError as error:
            raise RolloutError(f"vLLM refused request {request_id}: {error}") from error
        finally:
            self._running -= 1
        if last is None:
            raise EngineDead(f"vLLM ended request {request_id} without an output")
        try:
            return to_generation(last)
        except RolloutError:
            self._tainted = True
            raise

    async def abort_all(self) -> int:
        """See RolloutEngine. Pausing is the barrier: it also catches requests on their way into the scheduler."""
        running = self._running
        await self._control("abort", self._llm.pause_generation(mode="abort", clear_cache=False))
        await self._resume()
        return running

    async def sleep(self, level: int = 1) -> None:
        """See RolloutEngine. Level 1 keeps the weights in host memory, level 2 drops them: push before waking."""
        level = level if self._adapter is None else 1  # nothing that is pushed later would bring the base back
        await self._control("sleep", self._llm.sleep(level=level))
        self._asleep = level
        self._weights_lost = level >= 2 and self._device == "cuda"

    async def wake(self) -> None:
        """See RolloutEngine.

        Raises:
            RolloutError: after sleep level 2 on a GPU, when no weights were pushed: it would answer with garbage.
        """
        if self._weights_lost:
            raise RolloutError("weights were dropped by sleep level 2: publish weights before waking the server")
        await self._control("wake up", self._llm.wake_up())
        self._asleep = 0

    async def stage_weights(self, manifest: WeightManifest) -> None:
        """See RolloutEngine."""
        self._staged = None
        if manifest.backend not in PULLED:
            raise WeightError(f"weights by {manifest.backend} come through `transfer`, not by manifest")
        seconds = self._config.actor_rollout_ref.rollout.request_timeout_s
        try:
            began = await self._ask_workers("verl_stage", to_dict(manifest))
            await until_staged(
                manifest.version,
                began,
                lambda: self._ask_workers("verl_staged"),
                Deadline(f"weight version {manifest.version} to be received", seconds),
            )
        except VerlError:
            raise
        except Exception as error:
            raise WeightError(f"weight version {manifest.version} cannot be received: {error}") from error
        self._staged = manifest.version

    async def swap_weights(self) -> None:
        """See RolloutEngine. Requests that run are frozen, and their keys and values computed anew."""
        if self._staged is None:
            raise WeightError("no weights are staged; publish them again")
        version, self._staged = self._staged, None
        if self._adapter is not None:
            await self._refuse_missing(version)
        await self._memory_for_weights()
        await self._pause()
        if self._adapter is not None:
            await self._load(version)
            return
        try:
            await self._control("open the update", self._llm.start_weight_update())
            await self._control("take the weights", self._llm.update_weights(_update_request({"version": version})))
        except EngineDead:
            raise
        except Exception as error:
            await self._resume()
            raise WeightError(f"weight version {version} cannot be received: {error}") from error
        await self._load(version)

    async def update_weights(self, manifest: WeightManifest) -> None:
        """See RolloutEngine."""
        await self.stage_weights(manifest)
        await self.swap_weights()

    async def transfer(self, method: str, *arguments: Any) -> None:
        """Device transports: one step of the trainer's conversation (see weights.device.ServerConversation).

        Raises:
            EngineDead: it broke half way; the weights are then a mixture.
        """
        if method == "finish_weight_update":
            return await self._load(int(arguments[0]))
        if method == "start_weight_update":
            await self._memory_for_weights()
            await self._pause()
        calls = {
            "init_weight_transfer": lambda: self._llm.init_weight_transfer_engine(_init_request(*arguments)),
            "start_weight_update": lambda: self._llm.start_weight_update(),
            "receive_weights": lambda: self._llm.update_weights(_update_request(*arguments)),
        }
        if method not in calls:
            raise WeightError(f"unknown step {method!r} of a weight transfer")
        try:
            await self._control(method, calls[method]())
        except Exception as error:
            if method == "init_weight_transfer":
                raise
            raise EngineDead(f"{method} failed and left the weights mixed: {error!r}") from error
        return None

    async def health(self) -> None:
        """See RolloutEngine."""
        if self._llm is None or self._llm.errored:
            raise EngineDead("the inference engine's process is gone")

    async def shutdown(self) -> None:
        """See RolloutEngine."""
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)

    def _build(self) -> Any:
        for name, value in process_environment(self._config, self._device).items():
            os.environ.setdefault(name, value)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(self._config, self._device)))

    async def _pause(self) -> None:
        """Freeze running requests and drop all cached keys and values; they are computed anew under the new weights."""
        await self._control("pause", self._llm.pause_generation(mode="keep", clear_cache=True))

    async def _resume(self) -> None:
        """Let the scheduler go on, unless it sleeps."""
        if not self._asleep:
            await self._control("resume", self._llm.resume_generation())

    async def _ask_workers(self, method: str, *arguments: Any) -> list[Account]:
        accounts: list[Account] = await self._control(method, self._llm.collective_rpc(method, args=arguments))
        return accounts

    async def _refuse_missing(self, version: int) -> None:
        """Raise WeightError if a worker lacks the staged adapter. Asked for, since what a worker raises loses its type
        on the way here, and before any worker changes its own."""
        missing: list[str] = await self._control(
            "look for the adapter", self._llm.collective_rpc("verl_adapter_missing", args=(version,))
        )
        if reasons := [reason for reason in missing if reason]:
            raise WeightError(reasons[0])

    async def _load(self, version: int) -> None:
        """The one moment of change. An error in here leaves no usable engine."""
        try:
            if self._adapter is None:
                await self._control("load the weights", self._llm.finish_weight_update(weight_version=str(version)))
            else:
                swapped = self._llm.collective_rpc("verl_swap_adapter", args=(version,))
                await self._control("load the adapter", swapped)
                await self._control("set the weight version", self._llm.update_weight_version(str(version)))
            if self._tainted:
                await self._control("zero the cache", self._llm.collective_rpc("verl_zero_kv"))
            await self._control("reset the cache", self._llm.reset_prefix_cache(reset_running_requests=True))
            await self._resume()
        except Exception as error:
            raise EngineDead(f"loading weight version {version} broke the engine: {error!r}") from error
        self.version, self._tainted, self._weights_lost = version, False, False

    async def _memory_for_weights(self) -> None:
        """A sleeping engine must hold its weights, and only those, before they are overwritten."""
        if self._asleep and self._device == "cuda":
            await self._control("wake the weights", self._llm.wake_up(tags=["weights"]))

    async def _control(self, name: str, call: Awaitable[T]) -> T:
        from vllm.v1.engine.exceptions import EngineDeadError

        deadline = Deadline(f"vLLM to {name}", self._config.actor_rollout_ref.rollout.request_timeout_s)
        task = asyncio.ensure_future(call)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=min(_LOOK_S, max(deadline.left, 0.001)))
                if done:
                    return task.result()
                await self.health()
                deadline.check()
        except EngineDeadError as error:
            raise EngineDead(f"the inference engine died; could not {name}") from error
        finally:
            task.cancel()


def _update_request(update_info: Any) -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    return WeightTransferUpdateRequest(update_info=update_info)


def _init_request(init_info: Any) -> Any:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    return WeightTransferInitRequest(init_info=init_info)

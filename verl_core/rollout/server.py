"""LLMServer: one inference engine behind a gate. Made a Ray actor by `servers.py`; plain asyncio inside.

Invariant: the server never serves anything older than what was published last when it started, weights change as a
whole while no request is inside (or, where requests are not resumed, between two of their tokens), and a server whose
engine died answers its pending calls with EngineDead and leaves the process, so that Ray starts a new one in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import EngineDead, WeightError
from verl_core.rollout.clients import resumable
from verl_core.rollout.engines import build_engine
from verl_core.rollout.gate import Gate
from verl_core.rollout.interface import Attempt, GateMode, Generation, RolloutEngine, SamplingParams
from verl_core.rollout.named_actor import was_restarted
from verl_core.rollout.server_state import DeviceReceiver, ServerState, Stage
from verl_core.rollout.usage import ServerUsage, UsageMeter
from verl_core.weights.interface import PULLED, WeightManifest
from verl_core.weights.manifest import forget_current, read_current, write_current
from verl_core.weights.sender import run_backend
from verl_core.weights.shm import make_folder

logger = logging.getLogger(__name__)
EXIT_CODE = 70
_WATCH_S, _FAREWELL_S, _REREADS = 2.0, 0.5, 5


class LLMServer:
    """Build it on a running event loop: it starts at once, and every method waits for the start.

    Args:
        index: of the server in its run.
        config: the resolved configuration.
        device: cpu or cuda.
        weights_folder: where the trainer publishes (shm); read at every start.
        identity: says which run this server belongs to; see `named_actor.attach`.
        forget: what lies in the folder at the first start is of an earlier run: serve the model folder, version 0.
        restarted: this is not the actor's first start; default: Ray knows.
        engine: instead of the one the configuration names (tests).
        leave: called when the engine died, after pending calls were answered.
    """

    def __init__(
        self,
        index: int,
        config: RunConfig,
        device: str,
        weights_folder: str,
        identity: str = "",
        forget: bool = False,
        restarted: bool | None = None,
        engine: RolloutEngine | None = None,
        leave: Callable[[], None] = lambda: os._exit(EXIT_CODE),
    ) -> None:
        self._index, self._config, self._folder, self._identity = index, config, weights_folder, identity
        self._device = device
        self._engine = build_engine(config, device) if engine is None else engine
        self._restarted = was_restarted() if restarted is None else restarted
        self._forget = forget and not self._restarted
        self._gate, self._control, self._leave = Gate(), asyncio.Lock(), leave
        self._stage: Stage = "loading the model"
        self._error: BaseException | None = None
        self._asleep, self._stale = False, False
        self._applied: WeightManifest | None = None
        self._meter = UsageMeter(uuid.uuid4().hex)
        self._switch_s = 0.0
        self._transfer_since: float | None = None
        self._started = asyncio.get_running_loop().create_task(self._start())
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    # ---- questions

    async def ping(self) -> ServerState:
        """Answers at any time, also while the model loads."""
        error = "" if self._error is None else f"{type(self._error).__name__}: {self._error}"
        version, pid, gate = self._engine.version, os.getpid(), self._gate.state()
        return ServerState(self._index, pid, self._stage, version, self._asleep, gate, error, self._switch_s)

    async def usage(self) -> ServerUsage:
        """What the engine was used for in this life of the process. Answers at any time."""
        return self._meter.read()

    async def identity(self) -> str:
        """Given at construction. Empty when the start failed or the engine died, so that nobody attaches."""
        return "" if self._stage in ("failed", "dead") else self._identity

    async def ready(self) -> ServerState:
        """Returns when requests are served; raises what kept the server from it."""
        await self._ready()
        return await self.ping()

    async def version(self) -> int:
        """Weight version that the next token is sampled from; -1 while the server waits for the next publication."""
        await self._ready()
        return -1 if self._stale else self._engine.version

    async def health(self) -> None:
        """Raise EngineDead if the engine cannot serve."""
        await self._ready()
        async with self._mortal():
            await self._engine.health()

    # ---- requests

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, attempt: Attempt | None = None
    ) -> Generation:
        """One completion; see RolloutEngine.generate.

        Args:
            attempt: of a client that goes on with what is cut off; it bounds waiting at the gate and work apart.

        Raises:
            RolloutError: the request can never succeed.
            EngineDead: it may succeed elsewhere (GateClosed: this server takes none now).
            DeadlineExceeded: with `attempt`, one of its two times is over; without, not done in `request_timeout_s`,
                waiting at the gate included.
        """
        name = f"generation {request_id}"
        both = self._deadline(name)
        parked = both if attempt is None else self._deadline(f"the gate to open for {name}", attempt.pause_s)
        await self._ready()
        async with self._gate.pass_through(request_id, parked), self._mortal():
            deadline = both if attempt is None else self._deadline(name, attempt.work_s)
            began = time.monotonic()
            done, since = (None, 0.0) if attempt is None else (attempt.done, attempt.since)
            with self._meter.request(done) as answer:
                told = replace(params, done=done or 0, since=since)
                work = self._engine.generate(request_id, prompt_ids, told)
                try:
                    answer.append(await asyncio.wait_for(work, max(deadline.left, 0.001)))
                except TimeoutError as error:
                    raise deadline.expired() from error
            return replace(answer[0], worked_s=time.monotonic() - began)

    async def gate(self, mode: GateMode) -> None:
        """Open, park or reject; takes effect for requests that did not pass yet."""
        self._gate.set(mode)

    async def abort(self) -> int:
        """Cut off every request inside; each is answered with what it has. Returns how many there were.

        A barrier: when it returns, no request is inside. The gate is closed meanwhile and then as it was.
        """
        await self._ready()
        with self._gate.held():
            async with self._mortal():
                return await self._cut_off()

    # ---- memory and weights

    async def sleep(self, level: int = 1, abort: bool = False) -> None:
        """Keep new requests out, let none be inside, then give device memory back. Sleeping twice is sleeping once.

        Args:
            abort: cut off those inside, who get what they have; else wait for them.

        Raises:
            DeadlineExceeded: requests inside did not end; the server stays awake.
        """
        await self._ready()
        async with self._control, self._mortal():
            if self._asleep:
                return
            self._gate.hold()
            try:
                if abort:
                    await self._cut_off()
                await self._gate.emptied(self._deadline("running requests to end before sleep"))
                await self._engine.sleep(level)
            except BaseException:
                self._gate.unhold()
                raise
            self._asleep = True

    async def wake(self) -> None:
        """The engine first, the gate after it."""
        await self._ready()
        async with self._control, self._mortal():
            if self._asleep:
                await self._engine.wake()
                self._asleep = False
                self._gate.unhold()

    async def update_weights(self, manifest: WeightManifest, wake: bool = False) -> int:
        """Serve the published weights; returns the version. The same publication twice is one update.

        They are received and checked while requests run. Then, for as short as it takes, the gate is held, who is
        inside is cut off (where clients resume), and the weights change. A caller that goes away stops none of it.

        Args:
            wake: afterwards, when it succeeded. The gate is held from the start: who comes meets the new weights.

        Raises:
            WeightError: the weights were refused; the server serves what it served before.
        """
        await self._ready()
        with self._gate.held() if wake else contextlib.nullcontext():
            version = await asyncio.shield(asyncio.get_running_loop().create_task(self._update(manifest)))
        if wake:
            await self.wake()
        return version

    async def transfer(self, method: str, *arguments: Any) -> None:
        """Device transports: one step of the sender's conversation with the engine. From its opening to its finish the
        gate is held; a conversation that is never finished ends this server, whose weights may be a mixture."""
        await self._ready()
        if not isinstance(self._engine, DeviceReceiver):
            raise WeightError("this engine takes weights through shared memory only: set update_weights_backend to shm")
        async with self._control, self._mortal():
            if method == "start_weight_update":
                await self._open_transfer()
            if method == "finish_weight_update":
                self._leave_mark(int(arguments[0]))
            await self._engine.transfer(method, *arguments)
            if method == "finish_weight_update":
                self._close_transfer()
                self._refreshed()

    async def shutdown(self) -> None:
        """Stop the engine; the actor may be killed afterwards."""
        self._gate.set("reject")
        self._watching.cancel()
        self._started.cancel()
        await self._engine.shutdown()

    # ---- the change of weights

    async def _update(self, manifest: WeightManifest) -> int:
        async with self._control, self._mortal():
            if manifest.backend not in PULLED and self._engine.version == manifest.version and not self._stale:
                return manifest.version  # device transports have delivered it already, through `transfer`
            if manifest != self._applied:
                await self._engine.stage_weights(manifest)
                began = time.monotonic()
                with self._gate.held():
                    if resumable(self._config):
                        await self._cut_off()
                    await self._engine.swap_weights()
                self._switch_s = time.monotonic() - began
                self._applied = manifest
                self._refreshed()
            return self._engine.version

    async def _open_transfer(self) -> None:
        if self._transfer_since is None:
            self._gate.hold()
        self._transfer_since = time.monotonic()
        if resumable(self._config):
            await self._cut_off()

    def _close_transfer(self) -> None:
        if self._transfer_since is not None:
            self._switch_s = time.monotonic() - self._transfer_since
            self._transfer_since = None
            self._gate.unhold()

    # ---- life and death

    async def _start(self) -> None:
        try:
            await self._engine.start()
            self._stage = "loading published weights"
            await self._catch_up()
            self._stage = "ready"
        except EngineDead as error:
            self._die(error)
            raise
        except Exception as error:
            self._stage, self._error = "failed", error
            logger.exception("server %d did not start", self._index)
            raise

    async def _catch_up(self) -> None:
        """Load what was published last. A publication may overtake the reading: then read again."""
        if run_backend(self._config, self._device) != "store":
            folder = Path(self._folder)
            if self._restarted and not folder.is_dir():
                self._outdated()  # another host than that of the first start: what was published is out of reach
                return
            make_folder(folder)
        if self._forget:
            forget_current(self._folder)
        for attempt in range(_REREADS):
            manifest = read_current(self._folder)
            if manifest is None:
                return
            if manifest.backend not in PULLED:
                self._outdated()  # the weights are on the trainer's devices
                return
            try:
                await self._engine.update_weights(manifest)
            except WeightError:
                if attempt == _REREADS - 1 or read_current(self._folder) == manifest:
                    raise
                continue
            self._applied = manifest
            return

    def _outdated(self) -> None:
        """Serve nobody until the next publication."""
        self._stale = True
        self._gate.set("reject")

    def _refreshed(self) -> None:
        """The engine has what was published last."""
        if self._stale:
            self._stale = False
            self._gate.set("open")

    def _leave_mark(self, version: int) -> None:
        """Weights that came between devices are gone with this process: say so to the one that Ray starts next."""
        backend = run_backend(self._config, self._device)
        write_current(Path(self._folder), WeightManifest(version, backend, "devices", (), ()))

    async def _cut_off(self) -> int:
        """Abort until nobody is inside; the gate is held meanwhile. Returns how many were aborted."""
        deadline, count = self._deadline("aborted requests to be answered"), 0
        while self._gate.inside:
            count += await self._engine.abort_all()
            with contextlib.suppress(TimeoutError):  # one may have been on its way in: abort again
                await asyncio.wait_for(self._gate.emptied(deadline), min(0.05, deadline.left + 0.001))
            deadline.check()
        return count

    async def _ready(self) -> None:
        if self._stage == "ready":
            return
        if self._stage == "dead":
            raise EngineDead(f"server {self._index} is leaving: {self._error}")
        await asyncio.shield(self._started)

    @asynccontextmanager
    async def _mortal(self) -> AsyncIterator[None]:
        """Around every use of the engine: an EngineDead out of it is the end of this process."""
        try:
            yield
        except EngineDead as error:
            self._die(error)
            raise

    async def _watch(self) -> None:
        """An engine may die while nobody asks it anything."""
        while self._stage != "dead":
            await asyncio.sleep(_WATCH_S)
            if self._stage != "ready":
                continue
            try:
                await self._engine.health()
                self._check_transfer()
            except EngineDead as error:
                self._die(error)

    def _check_transfer(self) -> None:
        """Raise EngineDead for a transfer whose sender has gone silent."""
        limit = self._config.actor_rollout_ref.rollout.request_timeout_s
        if self._transfer_since is not None and time.monotonic() - self._transfer_since > limit:
            raise EngineDead(f"a transfer of weights was not finished within {limit:g} s; they may be a mixture")

    def _die(self, error: BaseException) -> None:
        if self._stage == "dead":
            return
        self._stage, self._error = "dead", error
        self._gate.set("reject")
        logger.error("server %d: %s; leaving so that it is started anew", self._index, error)
        asyncio.get_running_loop().call_later(_FAREWELL_S, self._leave)

    def _deadline(self, name: str, seconds: float | None = None) -> Deadline:
        longest = self._config.actor_rollout_ref.rollout.request_timeout_s if seconds is None else seconds
        return Deadline(f"{name} on server {self._index}", max(longest, 0.001), self._gate.state)

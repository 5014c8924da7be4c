"""The thread that drives vLLM's in-process engine. Invariant: only this thread touches the engine.

Commands run between two steps, so an update of the weights never meets a forward pass, and all requests that queued up
during a step enter the next one together. Outputs are handed over once per step, not once per token.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from verl_core.errors import EngineDead

T = TypeVar("T")
Outputs = list[Any]  # vllm.RequestOutput
STALL_S = 300.0


class StepLoop:
    """Owner: VllmInprocEngine.

    Args:
        build: makes the LLMEngine; called on the thread.
        deliver: takes the finished outputs of one step; called on the thread, must not block.
        died: told once when a step raised; called on the thread. No command is served afterwards.
    """

    def __init__(
        self, build: Callable[[], Any], deliver: Callable[[Outputs], None], died: Callable[[BaseException], None]
    ) -> None:
        self._build, self._deliver, self._died = build, deliver, died
        self._commands: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._stopping, self._beat, self._busy = False, time.monotonic(), False
        self.paused = False  # set by commands only
        self.built: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="vllm-step-loop", daemon=True)

    def start(self) -> None:
        """Start the thread; `built` resolves when the engine stands, or carries why it does not."""
        self._thread.start()

    def submit(self, command: Callable[[Any], T]) -> Future[T]:
        """Run `command(engine)` between two steps. Raises EngineDead when the loop is over."""
        future: Future[T] = Future()
        with self._lock:
            self.check()
            self._commands.put((command, future))
        return future

    def check(self) -> None:
        """Raise EngineDead if no more steps will be made, or the running one has not come back for STALL_S."""
        if self._error is not None:
            raise EngineDead(f"the inference engine died: {self._error!r}") from self._error
        if self._stopping or not self._thread.is_alive():
            raise EngineDead("the inference engine was shut down")
        if self._busy and time.monotonic() - self._beat > STALL_S:
            raise EngineDead(f"the inference engine has been in one step for {time.monotonic() - self._beat:.0f} s")

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop after the current step and free the engine."""
        if not self._thread.is_alive():
            return

        def leave(_: Any) -> None:
            self._stopping = True

        self._commands.put((leave, Future()))
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            engine = self._build()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for `built`
            self._error = error
            self.built.set_exception(error)
            return
        self.built.set_result(None)
        try:
            while not self._stopping:
                self._beat, self._busy = time.monotonic(), False
                self._serve(engine)
                if not (self._stopping or self.paused) and engine.has_unfinished_requests():
                    self._busy = True
                    if outputs := engine.step():
                        self._deliver(outputs)
        except BaseException as error:  # noqa: BLE001 - every caller gets it as EngineDead
            self._end(error)
        else:
            self._end(None)
            engine.engine_core.shutdown()

    def _serve(self, engine: Any) -> None:
        """Run the queued commands; wait for one when there is nothing to step."""
        wait = self.paused or not engine.has_unfinished_requests()
        while True:
            try:
                command, future = self._commands.get(block=wait, timeout=1.0 if wait else None)
            except queue.Empty:
                return
            wait = False
            _settle(future, command, engine)
            if self._stopping:
                return

    def _end(self, error: BaseException | None) -> None:
        """Nobody may wait for a loop that is gone."""
        with self._lock:
            self._error, self._stopping = error, True
            gone = EngineDead(
                f"the inference engine died: {error!r}" if error else "the inference engine was shut down"
            )
            while not self._commands.empty():
                future = self._commands.get()[1]
                if future.set_running_or_notify_cancel():
                    future.set_exception(gone)
        self._died(gone)


def _settle(future: Future[Any], command: Callable[[Any], Any], engine: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = command(engine)
    except EngineDead as error:
        future.set_exception(error)
        raise
    except BaseException as error:  # noqa: BLE001 - belongs to the caller of the command
        future.set_exception(error)
    else:
        future.set_result(result)

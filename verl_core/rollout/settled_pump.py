"""SettledPump: the thread that brings settled groups from the workers into the driver's store (legacy path).

Invariant: every group expected reaches the store exactly once, as a terminal group: what its worker handed in, or a
failure when that life of its worker is over, or when the pump ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from verl_core.deadline import Deadline
from verl_core.errors import RolloutError
from verl_core.rollout.group_run import failed_group
from verl_core.trajectory import Prompt
from verl_core.transfer.interface import Finished, TrajectoryStore

_POLL_S = 1.0
_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class _Open:
    """A group that is expected; `life` is empty until its worker accepted it."""

    prompt: Prompt
    worker: str
    life: str


class SettledPump:
    """Runs from construction to `close`.

    Args:
        actors: `AgentLoopWorker` handles by name.
        store: of this process; used from the pump's thread.
    """

    def __init__(self, actors: Mapping[str, Any], store: TrajectoryStore) -> None:
        self._actors, self._store = dict(actors), store
        self._open: dict[str, _Open] = {}
        self._lives: dict[str, str] = {}  # worker -> its life now; "dead" when there will be no other
        self._lock = threading.Lock()  # guards _open, and makes leaving it and entering the store one act
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "settled-pump")
        self._done: Future[None] = self._thread.submit(self._run)

    def expect(self, worker: str, life: str, prompts: Sequence[Prompt]) -> None:
        """These groups are about to be sent to the worker (life is empty), or were accepted by that life of it."""
        with self._lock:
            for prompt in prompts:
                if not life or prompt.uid in self._open:  # one that was accepted may have settled already
                    self._open[prompt.uid] = _Open(prompt, worker, life)

    def forget(self) -> None:
        """Expect nothing any more: no group expected before enters the store after this returns."""
        with self._lock:
            self._open.clear()

    def check(self) -> None:
        """Raise RolloutError if the pump has ended; its own error is the cause."""
        if self._done.done():
            error = self._done.exception()
            raise RolloutError("results of agent workers are no longer collected; start the run again") from error

    def close(self, timeout_s: float = 10.0) -> None:
        """End the thread; groups still expected are failed."""
        ending = Deadline("the pump of agent results to end", timeout_s)
        self._stop.set()
        wait([self._done], timeout=ending.left)
        self._thread.shutdown(wait=False)
        if not self._done.done():
            raise ending.expired()

    # ---- on the thread

    def _run(self) -> None:
        asked = {_ask(actor): name for name, actor in self._actors.items()}
        try:
            while not self._stop.is_set() and asked:
                ready, _ = ray.wait(list(asked), num_returns=1, timeout=_POLL_S)
                for reference in ready:
                    name = asked.pop(reference)
                    if self._collect(name, reference):
                        asked[_ask(self._actors[name])] = name
                self._fail("its agent worker died", self._over)
        finally:
            self._fail("the driver stopped collecting results", lambda group: True)

    def _collect(self, name: str, reference: Any) -> bool:
        """Take what the worker settled; False when it is dead for good."""
        try:
            self._lives[name], settled = ray.get(reference)
        except ActorDiedError:
            self._lives[name] = "dead"
            return False
        except RayActorError:  # Ray is restarting it
            time.sleep(_AGAIN_S)
            return True
        self._finish(settled)
        return True

    def _over(self, group: _Open) -> bool:
        """Whether the life that accepted the group has ended."""
        return bool(group.life) and self._lives.get(group.worker, group.life) != group.life

    def _finish(self, settled: Sequence[Finished]) -> None:
        """Publish those that are still expected; a group that was failed in the meantime stays failed."""
        with self._lock:
            expected = [group for group in settled if self._open.pop(group.tag.uid, None) is not None]
            if expected:
                self._store.finish(expected)

    def _fail(self, reason: str, which: Callable[[_Open], bool]) -> None:
        with self._lock:
            lost = [group for group in self._open.values() if which(group)]
        self._finish([failed_group(group.prompt, group.worker, f"{group.worker}: {reason}") for group in lost])


def _ask(actor: Any) -> Any:
    return actor.take_settled.remote(_POLL_S)

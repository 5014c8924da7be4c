"""TeacherServer: one teacher in a process of its own; made a Ray actor by `group`.

Invariant: the model is used by one thread, questions about its state are answered at any time, and a server whose
engine died leaves the process, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from verl_core.config.schema import RunConfig
from verl_core.config.teachers import Teacher
from verl_core.errors import EngineDead
from verl_core.rollout.teachers.interface import ScoringEngine, TeacherRequest, TeacherRow

logger = logging.getLogger(__name__)
EXIT_CODE = 71
_FAREWELL_S = 0.5


def build_scoring(config: RunConfig, teacher: Teacher, device: str) -> ScoringEngine:
    """The engine that the teacher asks for, not started."""
    if teacher.engine == "scripted":
        from verl_core.rollout.teachers.torch_scoring import TorchScoring

        return TorchScoring(teacher.path)
    from verl_core.rollout.teachers.vllm_scoring import VllmScoring

    return VllmScoring(config, teacher, device)


class TeacherServer:
    """Build it on a running event loop: it loads its model at once.

    Args:
        config: of the run.
        device: cpu or cuda.
        identity: says which teacher of which run this is; see `named_actor.attach`.
        engine: instead of the one that the teacher asks for (tests).
        leave: called when the engine died, after the call was answered.
    """

    def __init__(
        self,
        config: RunConfig,
        teacher: Teacher,
        device: str,
        identity: str = "",
        engine: ScoringEngine | None = None,
        leave: Callable[[], None] = lambda: os._exit(EXIT_CODE),
    ) -> None:
        self._name, self._identity, self._leave = teacher.name, identity, leave
        self._engine = build_scoring(config, teacher, device) if engine is None else engine
        self._thread = ThreadPoolExecutor(1, "teacher")
        self._scored, self._waiting, self._wrong = 0, 0, ""
        self._started = asyncio.get_running_loop().run_in_executor(self._thread, self._engine.start)

    async def identity(self) -> str:
        """Given at construction; empty when the model could not be loaded, so that nobody attaches."""
        failed = self._started.done() and self._started.exception() is not None
        return "" if failed or self._wrong else self._identity

    async def ready(self) -> None:
        """Returns when the model is loaded; raises what kept it."""
        await asyncio.shield(self._started)

    async def state(self) -> str:
        """One line; at any time."""
        stage = "loading the model" if not self._started.done() else self._wrong or "ready"
        return f"pid={os.getpid()}, {stage}, sequences scored={self._scored}, waiting={self._waiting}"

    async def score(self, requests: Sequence[TeacherRequest], topk: int, vocabulary: int) -> list[TeacherRow]:
        """See ScoringEngine. Calls are answered in the order in which they come."""
        await self.ready()
        self._waiting += len(requests)
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._thread, self._engine.score, requests, topk, vocabulary)
        except EngineDead as error:
            self._wrong = str(error)
            logger.error("%s; leaving", error)
            loop.call_later(_FAREWELL_S, self._leave)
            raise
        finally:
            self._waiting -= len(requests)
        self._scored += len(rows)
        return rows

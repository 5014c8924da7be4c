"""Servers without Ray for the tests of clients: handles whose remote call is a task of this loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.rollout.interface import Attempt, Generation, SamplingParams
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.scripted_model import ScriptedModel
from verl_core.trajectory import Segment

ERRORS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
Call = tuple[str, list[int], SamplingParams, Attempt | None]


def bound_s(fault: str) -> float:
    """What docs/errors.md promises for the fault, in seconds."""
    rows = [line.split("|")[1:-1] for line in ERRORS_PAGE.read_text().splitlines() if line.startswith("|")]
    (within,) = (row[2] for row in rows if row[0].strip() == fault)
    return float(within.strip().removesuffix(" s"))


class FakeHandle:
    """`generate.remote` runs `behave(call number, call)`; keeps the calls."""

    def __init__(self, behave: Callable[[int, Call], Awaitable[Generation]]) -> None:
        self.calls: list[Call] = []
        self.generate = SimpleNamespace(remote=self._remote)
        self._behave = behave

    def _remote(
        self, request_id: str, ids: Sequence[int], params: SamplingParams, attempt: Attempt | None
    ) -> Awaitable[Generation]:
        self.calls.append((request_id, list(ids), params, attempt))
        return self._behave(len(self.calls), self.calls[-1])


def handle_of(server: Any) -> Any:
    """An LLMServer of this process as a handle."""
    return SimpleNamespace(
        generate=SimpleNamespace(remote=lambda *arguments: asyncio.ensure_future(server.generate(*arguments)))
    )


def engine_handle(engine: ScriptedEngine) -> FakeHandle:
    """An engine alone, without a gate."""

    async def behave(_: int, call: Call) -> Generation:
        return await engine.generate(*call[:3])

    return FakeHandle(behave)


def part(tokens: int, reason: str = "abort", version: int = 0, first: int = 0, worked_s: float = 0.0) -> Generation:
    """An answer whose tokens count up from `first`; log-probs are -token / 100."""
    ids = tuple(range(first, first + tokens))
    segments = (Segment(version, tokens),) if tokens else ()
    return Generation(ids, tuple(-token / 100 for token in ids), reason, segments, worked_s)  # type: ignore[arg-type]


class CutEngine(ScriptedEngine):
    """Cuts attempt i off once it has `cuts[i]` tokens, in the very place where a real abort is noticed."""

    def __init__(self, config: RunConfig, folder: str, cuts: Sequence[int] = ()) -> None:
        super().__init__(config, folder)
        self._cuts = list(cuts)
        self._after: dict[int, int] = {}

    def _admit(self, *arguments: Any) -> Any:
        request = super()._admit(*arguments)
        self._after.pop(id(request), None)
        if self._cuts:
            self._after[id(request)] = self._cuts.pop(0)
            self._cut(request)
        return request

    def _next_token(self, model: ScriptedModel, request: Any) -> None:
        super()._next_token(model, request)
        self._cut(request)

    def _cut(self, request: Any) -> None:
        if self._after.get(id(request), -1) == len(request.tokens):
            request.cut.set()
            del self._after[id(request)]  # the next request may get the same id

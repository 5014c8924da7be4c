"""Running the calls of a turn. Invariant: answers come in the order of the calls, each within its deadline, and no
call, whatever it does, raises into the session or outlives it unnoticed."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_core.tools.arguments import argument_problem
from verl_core.tools.interface import Call, CallOutcome, MalformedCall, Tool, ToolCall


@dataclass(frozen=True)
class CallRunner:
    """Runs calls of any session.

    Attributes:
        tools: by name.
        max_parallel: calls of a turn that are run, side by side; the model is told of the others.
        timeout_s: bounds every call.
    """

    tools: Mapping[str, Tool]
    max_parallel: int
    timeout_s: float

    async def run(self, calls: Sequence[Call]) -> list[CallOutcome]:
        """One outcome per call, in order; those beyond `max_parallel` share a single one at the end."""
        taken, left = calls[: self.max_parallel], calls[self.max_parallel :]
        tasks = [asyncio.ensure_future(self._one(call)) for call in taken]
        try:
            outcomes = list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # the session was cancelled
                task.cancel()
        return [*outcomes, self._refusal(left)] if left else outcomes

    async def _one(self, call: Call) -> CallOutcome:
        if isinstance(call, MalformedCall):
            return CallOutcome("", {}, "malformed", f"Error: {call.problem}")
        tool = self.tools.get(call.name)
        if tool is None:
            return CallOutcome(call.name, call.arguments, "unknown", f"Error: {self._unknown(call.name)}")
        if problem := argument_problem(tool.parameters, call.arguments):
            return CallOutcome(call.name, call.arguments, "raised", f"Error: {call.name}: {problem}")
        return await self._within_its_time(tool, call)

    async def _within_its_time(self, tool: Tool, call: ToolCall) -> CallOutcome:
        """A call that does not even end when it is cancelled is left behind: nothing it does later has an effect."""
        limit, began = min(tool.timeout_s, self.timeout_s), time.monotonic()
        work = asyncio.ensure_future(_answer(tool, call))
        work.add_done_callback(_read_exception)
        try:
            await asyncio.wait([work], timeout=limit)
        finally:
            done = work.done()
            work.cancel()
        seconds = time.monotonic() - began
        if not done:
            text = f"Error: {call.name} gave no answer within {limit:g} s"
            return CallOutcome(call.name, call.arguments, "timeout", text, seconds)
        error = asyncio.CancelledError("cancelled") if work.cancelled() else work.exception()
        if error is not None:
            text = f"Error: {call.name}: {type(error).__name__}: {_words(error)}"
            return CallOutcome(call.name, call.arguments, "raised", text, seconds)
        answer = work.result()
        if not isinstance(answer, str):
            text = f"Error: {call.name} gave a {type(answer).__name__}, not text"
            return CallOutcome(call.name, call.arguments, "raised", text, seconds)
        return CallOutcome(call.name, call.arguments, "ok", answer, seconds)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.tools, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"there is no tool {name[:80]!r}.{hint} There are: {', '.join(self.tools)}"

    def _refusal(self, left: Sequence[Call]) -> CallOutcome:
        more = "1 more call was" if len(left) == 1 else f"{len(left)} more calls were"
        return CallOutcome("", {}, "refused", f"Error: {more} not run; a turn may make {self.max_parallel}")


def _words(error: BaseException) -> str:
    """Its message; an exception's own `__str__` is the tool's code, and may fail like the rest of it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "without a message"


async def _answer(tool: Tool, call: ToolCall) -> str:
    try:
        return await tool.call(dict(call.arguments))
    except (SystemExit, KeyboardInterrupt) as error:  # would end the worker, which serves other sessions too
        raise RuntimeError(f"{type(error).__name__} was raised") from error


def _read_exception(work: asyncio.Future[str]) -> None:
    """Mark the outcome of a call that was given up as seen."""
    if not work.cancelled():
        work.exception()

"""The contract of a tool, and what becomes of a call. Invariant: whatever a call does, it ends as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

CallStatus = Literal["ok", "raised", "timeout", "unknown", "malformed", "refused"]


class Tool(Protocol):
    """What a policy may call. One instance per agent worker serves all sessions, many calls at a time: keep what
    belongs to a call in local variables.

    Attributes:
        name: how the model calls it.
        description: for the model, in the chat template's list of tools.
        parameters: JSON schema of the arguments, an object.
        timeout_s: seconds a call may take; rollout.multi_turn.tool_timeout_s wins where it is shorter.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    timeout_s: float

    async def call(self, arguments: dict[str, Any]) -> str:
        """The answer, as text for the model. What it raises becomes text too. It must not block the event loop: use
        `asyncio.to_thread` for what does."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be read. `arguments` is a JSON object."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that was meant as a call and cannot be read; `problem` tells the model why."""

    problem: str


Call = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a call became.

    Attributes:
        name: of the tool; empty when the call was malformed.
        text: for the model; an error's starts with `Error:`.
        seconds: it took.
    """

    name: str
    arguments: dict[str, Any]
    status: CallStatus
    text: str
    seconds: float = 0.0


def schema_of(tool: Tool) -> dict[str, Any]:
    """The tool as chat templates want it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}

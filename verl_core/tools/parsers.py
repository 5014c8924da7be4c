"""Calls in the text of a turn. Invariant: `parse(write(calls)) == calls`, and text that was meant as a call is either
a call or malformed, never part of an answer.

    hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them, other text around them
    json     the whole turn is one such object, or a list of them
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

from verl_core.errors import ConfigError
from verl_core.tools.interface import Call, MalformedCall, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_WANTED = '{"name": ..., "arguments": {...}}'
_MEANT_AS_CALL = re.compile(r'[\[{][\s\S]*"(name|arguments)"')


class CallFormat(Protocol):
    """One way to write calls."""

    def parse(self, text: str) -> list[Call]:
        """The calls of a turn in order; empty when the turn is an answer."""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """A turn that makes these calls and says nothing else."""


class _Refused(ValueError):
    """Why a text is no call."""


def _constant(name: str) -> Any:
    raise _Refused(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused(f"{digits} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_finite)


def _decoded(text: str, start: int = 0) -> tuple[Any, int]:
    """(value, end) of the JSON that starts at `start`."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except _Refused:
        raise
    except (ValueError, RecursionError) as error:
        raise _Refused(f"the call is not JSON ({_first_line(error)}); write {_WANTED}") from error
    return value, end


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _Refused(f"the call has no name; write {_WANTED}")
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _Refused(f"arguments must be a JSON object, not {type(arguments).__name__}; write {_WANTED}")
    if unknown := sorted(set(value) - {"name", "arguments"}):
        raise _Refused(f"the call has a field {unknown[0]!r}; write {_WANTED}")
    return ToolCall(value["name"], arguments)


class Hermes:
    """Tags around each call."""

    def parse(self, text: str) -> list[Call]:
        """JSON is read from the opening tag on, so a closing tag inside a string ends nothing."""
        found: list[Call] = []
        place = text.find(OPEN)
        while place >= 0:
            place += len(OPEN)
            try:
                value, end = _decoded(text, place)
                place = _after_close(text, end)
                found.append(_call(value))
            except _Refused as why:
                found.append(MalformedCall(str(why)))
            place = text.find(OPEN, place)
        return found

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One after the other, a line each."""
        return "\n".join(f"{OPEN}{_text(call)}{CLOSE}" for call in calls)


def _after_close(text: str, end: int) -> int:
    rest = text[end:].lstrip()
    if not rest.startswith(CLOSE):
        raise _Refused(f"the call is not closed by {CLOSE}")
    return len(text) - len(rest) + len(CLOSE)


class Json:
    """The whole turn is calls, or none of it is."""

    def parse(self, text: str) -> list[Call]:
        """An object or a list that speaks of a name or arguments was meant as calls."""
        whole = text.strip()
        if not _MEANT_AS_CALL.match(whole):
            return []
        try:
            value, end = _decoded(whole)
            if end != len(whole):
                raise _Refused("there is text after the call; the whole turn must be the call")
        except _Refused as why:
            return [MalformedCall(str(why))]
        return [_call_or_problem(entry) for entry in (value if isinstance(value, list) else [value])]

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One call as an object, several as a list."""
        return _text(calls[0]) if len(calls) == 1 else "[" + ",".join(map(_text, calls)) + "]"


def _call_or_problem(value: Any) -> Call:
    try:
        return _call(value)
    except _Refused as why:
        return MalformedCall(str(why))


def _text(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, separators=(",", ":"))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


FORMATS: dict[str, CallFormat] = {"hermes": Hermes(), "json": Json()}


def format_called(name: str) -> CallFormat:
    """The format of rollout.multi_turn.format. Raises ConfigError."""
    if name not in FORMATS:
        raise ConfigError(f"actor_rollout_ref.rollout.multi_turn.format={name!r}: known are {', '.join(FORMATS)}")
    return FORMATS[name]

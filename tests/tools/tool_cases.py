"""Tools for the tests, importable by path: good ones and every kind of bad one."""

from __future__ import annotations

import asyncio
from typing import Any

from verl_core.tools.interface import Tool


class Echo:
    """Says its text, after `wait` seconds."""

    name = "echo"
    description = "Says a text."
    parameters: dict[str, Any] = {  # noqa: RUF012
        "type": "object",
        "properties": {"text": {"type": "string"}, "wait": {"type": "number"}, "often": {"type": "integer"}},
        "required": ["text"],
    }
    timeout_s = 5.0

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    async def call(self, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(arguments.get("wait", 0.0))
        return self.prefix + arguments["text"] * arguments.get("often", 1)


class Broken(Echo):
    """Does what `text` says."""

    name = "broken"

    def __init__(self, timeout_s: float = 5.0) -> None:
        super().__init__()
        self.timeout_s = timeout_s  # type: ignore[misc]

    async def call(self, arguments: dict[str, Any]) -> str:
        match arguments["text"]:
            case "raise":
                raise ValueError("no such thing")
            case "exit":
                raise SystemExit(3)
            case "cancel":
                raise asyncio.CancelledError
            case "hang":
                await asyncio.sleep(3600)
            case "deaf":
                for _ in range(20):
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
            case "number":
                return 7  # type: ignore[return-value]
            case "surrogate":
                return "half \ud800 a pair"
            case "change":
                arguments.clear()
        return "done"


class NoTool:
    """Lacks a name."""

    async def call(self, arguments: dict[str, Any]) -> str:
        return ""


class Unready:
    """Cannot be built."""

    def __init__(self) -> None:
        raise OSError("no index")

    async def call(self, arguments: dict[str, Any]) -> str:
        return ""


def by_name(*tools: Tool) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}

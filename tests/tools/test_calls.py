"""Running calls: order, limits, and tools that raise, hang, answer nonsense or want to end the process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.tools.tool_cases import Broken, Echo, by_name
from verl_core.tools.arguments import argument_problem
from verl_core.tools.calls import CallRunner
from verl_core.tools.interface import Call, CallOutcome, MalformedCall, ToolCall


def run(*calls: Call, parallel: int = 4, timeout_s: float = 5.0, broken_s: float = 5.0) -> list[CallOutcome]:
    runner = CallRunner(by_name(Echo(), Broken(broken_s)), parallel, timeout_s)

    async def main() -> list[CallOutcome]:
        return await asyncio.wait_for(runner.run(calls), 60)

    return asyncio.run(main())


def echo(text: str, **arguments: object) -> ToolCall:
    return ToolCall("echo", {"text": text, **arguments})


def test_answers_come_in_the_order_of_the_calls_though_they_end_in_another() -> None:
    ended: list[str] = []

    class Chain(Echo):
        """Each call waits until the one after it has ended: they can only end side by side, last one first."""

        async def call(self, arguments: dict[str, Any]) -> str:
            number = int(arguments["text"])
            while number < 2 and str(number + 1) not in ended:
                await asyncio.sleep(0)
            ended.append(arguments["text"])
            return str(arguments["text"])

    found = asyncio.run(CallRunner(by_name(Chain()), 3, 60).run([echo("0"), echo("1"), echo("2")]))
    assert [(one.text, one.status) for one in found] == [("0", "ok"), ("1", "ok"), ("2", "ok")]
    assert ended == ["2", "1", "0"]


def test_a_message_that_cannot_be_written_and_a_schema_that_allows_anything_end_as_text() -> None:
    class Mute(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Silent(Echo):
        parameters = {"type": "object", "properties": {"text": True}}  # noqa: RUF012

        async def call(self, arguments: dict[str, Any]) -> str:
            raise Mute

    (found,) = asyncio.run(CallRunner(by_name(Silent()), 1, 60).run([echo("a")]))
    assert (found.status, found.text) == ("raised", "Error: echo: Mute: without a message")


def test_calls_beyond_the_limit_are_told_not_run() -> None:
    found = run(echo("a"), echo("b"), echo("c", wait=9), echo("d", wait=9), parallel=2)
    assert [one.text for one in found[:2]] == ["a", "b"]
    assert found[2:] == [CallOutcome("", {}, "refused", "Error: 2 more calls were not run; a turn may make 2")]
    assert run(echo("a"), echo("b"), parallel=1)[1].text == "Error: 1 more call was not run; a turn may make 1"


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("raise", "Error: broken: ValueError: no such thing"),
        ("exit", "Error: broken: RuntimeError: SystemExit was raised"),
        ("cancel", "Error: broken: CancelledError: cancelled"),
        ("number", "Error: broken gave a int, not text"),
    ],
)
def test_a_tool_that_fails_becomes_text_and_the_others_go_on(order: str, text: str) -> None:
    found = run(ToolCall("broken", {"text": order}), echo("fine"))
    assert (found[0].status, found[0].text) == ("raised", text)
    assert (found[1].status, found[1].text) == ("ok", "fine")


@pytest.mark.parametrize("order", ["hang", "deaf"])
@pytest.mark.parametrize(("timeout_s", "broken_s"), [(0.2, 5.0), (5.0, 0.2)])
def test_a_tool_that_hangs_is_left_behind_at_its_own_or_the_general_limit(
    order: str, timeout_s: float, broken_s: float
) -> None:
    began = time.monotonic()
    runner = CallRunner(by_name(Broken(broken_s)), 1, timeout_s)

    async def main() -> tuple[list[CallOutcome], float]:
        found = await runner.run([ToolCall("broken", {"text": order})])
        return found, time.monotonic() - began

    (found,), seconds = asyncio.run(main())
    assert (found.status, found.text) == ("timeout", "Error: broken gave no answer within 0.2 s")
    assert 0.2 <= seconds < 60


def test_calls_that_cannot_be_made() -> None:
    unknown, malformed, missing, wrong = run(
        ToolCall("ecko", {}), MalformedCall("it is not JSON"), ToolCall("echo", {}), echo("a", often="two")
    )
    assert unknown.text == "Error: there is no tool 'ecko'. Did you mean 'echo'? There are: echo, broken"
    assert (malformed.status, malformed.text) == ("malformed", "Error: it is not JSON")
    assert missing.text == "Error: echo: argument 'text' is missing"
    assert wrong.text == "Error: echo: argument 'often' must be integer"


def test_a_tool_cannot_change_what_is_recorded_of_its_call() -> None:
    (found,) = run(ToolCall("broken", {"text": "change"}))
    assert found.arguments == {"text": "change"}


def test_a_cancelled_session_cancels_its_calls() -> None:
    ended: list[str] = []

    class Listener(Echo):
        async def call(self, arguments: dict[str, object]) -> str:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("yes")
            return ""

    async def main() -> None:
        session = asyncio.create_task(CallRunner(by_name(Listener()), 1, 60).run([echo("a")]))
        await asyncio.sleep(0.05)
        session.cancel()
        await asyncio.wait([session])
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert ended == ["yes"]


def test_arguments_against_the_schema() -> None:
    schema = {
        "properties": {"n": {"type": "integer"}, "x": {"type": ["number", "null"]}, "s": {}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert argument_problem(schema, {"n": 1, "x": None, "s": [1]}) == ""
    assert argument_problem(schema, {}) == "argument 'n' is missing"
    assert argument_problem(schema, {"n": 1, "y": 2}) == "there is no argument 'y'; there are n, s, x"
    assert argument_problem(schema, {"n": True}) == "argument 'n' must be integer"
    assert argument_problem(schema, {"n": 1, "x": "1"}) == "argument 'x' must be number or null"
    assert argument_problem({}, {"anything": object()}) == ""

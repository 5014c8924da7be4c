"""Call formats: what is written is read back, and nothing that was meant as a call passes for an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.errors import ConfigError
from verl_core.tools.interface import MalformedCall, ToolCall
from verl_core.tools.parsers import CLOSE, FORMATS, OPEN, format_called

HERMES, JSON = FORMATS["hermes"], FORMATS["json"]
TEXT = st.text(max_size=12) | st.sampled_from([OPEN, CLOSE, '"}', "{", "\\", "\n", '{"name": "x"}'])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.builds(ToolCall, TEXT, st.dictionaries(TEXT, VALUES, max_size=3)), min_size=1, max_size=4)
PROSE = st.text(alphabet="abc \n.{}[]\"'", max_size=12)


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(calls=CALLS)
def test_what_is_written_is_read_back(name: str, calls: list[ToolCall]) -> None:
    assert FORMATS[name].parse(FORMATS[name].write(calls)) == calls


@given(calls=CALLS, prose=st.lists(PROSE, min_size=5, max_size=5))
def test_hermes_calls_are_found_in_any_prose_and_any_layout(calls: list[ToolCall], prose: list[str]) -> None:
    text = prose[0]
    for call, after in zip(calls, prose[1:], strict=False):
        body = json.dumps({"arguments": call.arguments, "name": call.name}, indent=1)
        text += f"{OPEN}\n{body} \n{CLOSE}{after}"
    assert HERMES.parse(text) == calls


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(text=st.text(max_size=60) | st.text(alphabet='<tool_cal>/{}[]":,name arguments', max_size=60))
def test_no_text_raises(name: str, text: str) -> None:
    found = FORMATS[name].parse(text)
    assert all(isinstance(call, ToolCall | MalformedCall) for call in found)
    if name == "hermes":
        assert bool(found) == (OPEN in text)


@given(calls=CALLS, cut=st.integers(1, 30))
def test_a_hermes_call_that_breaks_off_is_malformed_and_never_another_call(calls: list[ToolCall], cut: int) -> None:
    whole = HERMES.write(calls)
    found = HERMES.parse(whole[: len(whole) - cut])
    good = [call for call in found if isinstance(call, ToolCall)]
    assert good == calls[: len(good)]
    assert len(good) < len(calls)


@pytest.mark.parametrize("text", ["", "42", "The answer is [1, 2].", "[1, 2]", "{}", '{"a": 1}', "name"])
def test_answers_are_no_calls(text: str) -> None:
    assert JSON.parse(text) == HERMES.parse(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "calc", "arguments": {"e": 1}', "not JSON"),
        ('{"name": "calc", "arguments": "1+1"}', "must be a JSON object, not str"),
        ('{"name": 7, "arguments": {}}', "has no name"),
        ('{"arguments": {"e": "1"}}', "has no name"),
        ('{"name": "calc", "parameters": {}}', "field 'parameters'"),
        ('{"name": "calc", "arguments": {"e": NaN}}', "NaN is not JSON"),
        ('{"name": "calc", "arguments": {"e": 1e999}}', "1e999 is too large"),
        ('{"name": ' + "[" * 100_000, "not JSON"),
    ],
    ids=range(8),
)
def test_malformed_calls_say_what_is_wrong(text: str, problem: str) -> None:
    for found in (JSON.parse(text), HERMES.parse(f"so: {OPEN}{text}{CLOSE}")):
        (call,) = found
        assert isinstance(call, MalformedCall)
        assert problem in call.problem


def test_json_takes_the_whole_turn() -> None:
    (call,) = JSON.parse('{"name": "calc", "arguments": {}} and then')
    assert call == MalformedCall("there is text after the call; the whole turn must be the call")
    good, bad = JSON.parse(' [{"name": "a"}, {"name": 1}]\n')
    assert good == ToolCall("a", {})
    assert isinstance(bad, MalformedCall)


def test_hermes_goes_on_after_a_malformed_call() -> None:
    text = f'{OPEN}{{"name": {OPEN}{{"name":"b"}}{CLOSE} {OPEN}{{"name":"c"}} {OPEN}{{"name":"d"}}{CLOSE}'
    names = [call.name if isinstance(call, ToolCall) else None for call in HERMES.parse(text)]
    assert names == [None, "b", None, "d"]


def test_formats_by_name() -> None:
    assert format_called("json") is JSON
    with pytest.raises(ConfigError, match="known are hermes, json"):
        format_called("xml")

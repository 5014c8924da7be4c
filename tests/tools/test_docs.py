"""docs/tools.md and docs/errors.md: the example runs, and the messages are the code's."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import PLAIN, bpe
from verl_core.config.schema import MultiTurnConfig
from verl_core.data.tool_turn import ToolTurn
from verl_core.errors import VerlError
from verl_core.tools.calls import CallRunner
from verl_core.tools.interface import MalformedCall, ToolCall
from verl_core.tools.registry import tools_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_example_is_a_tool_and_what_goes_wrong_reads_as_documented() -> None:
    page = (DOCS / "tools.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    space: dict[str, Any] = {}
    exec(example, space)
    runner = CallRunner({"search": space["Search"]({"one": "the first number"})}, 4, 5.0)
    calls = [ToolCall("search", {"word": word}) for word in ("one", "two")]
    found = asyncio.run(runner.run([*calls, ToolCall("serch", {}), MalformedCall("the call is not JSON (...)")]))
    assert found[0].text == "the first number"
    for outcome in found[1:]:
        assert f"| `{outcome.status}` |" in page
        assert f"`{outcome.text}`" in page or outcome.text.startswith("Error: there is no tool 'serch'. Did you mean")


@pytest.mark.parametrize("tool", ["calculater", "my.module.Search"])
def test_tools_that_cannot_be_had(tool: str) -> None:
    with pytest.raises(VerlError) as caught:
        tools_of(MultiTurnConfig(tools=[tool]))
    assert f"```text\n{caught.value}\n```" in (DOCS / "errors.md").read_text()


@pytest.mark.parametrize("change", [("tools", "toolz"), ("+ '<|im_end|>\n' }}{% endfor", "+ '\n' }}{% endfor")])
def test_templates_without_a_place_for_tools(change: tuple[str, str]) -> None:
    with pytest.raises(VerlError) as caught:
        ToolTurn(bpe(PLAIN.replace(*change)))
    assert f"```text\n{str(caught.value).replace('bpe', 'models/mine')}\n```" in (DOCS / "errors.md").read_text()

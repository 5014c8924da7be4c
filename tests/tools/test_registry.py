"""Tools by name, path and file; what is refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.tool_cases import Echo
from verl_core.config.schema import MultiTurnConfig
from verl_core.errors import ConfigError
from verl_core.tools.calculator import Calculator
from verl_core.tools.registry import tools_of

CASES = "tests.tools.tool_cases"


def test_tools_by_short_name_and_path_in_order() -> None:
    found = tools_of(MultiTurnConfig(tools=[f"{CASES}.Echo", "calculator"]))
    assert list(found) == ["echo", "calc"]
    assert isinstance(found["echo"], Echo)
    assert isinstance(found["calc"], Calculator)


def test_tools_of_a_file_are_built_with_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(f"tools:\n  - class_name: {CASES}.Echo\n    config: {{prefix: '> '}}\n  - class_name: calculator\n")
    found = tools_of(MultiTurnConfig(tool_config_path=str(file)))
    assert list(found) == ["echo", "calc"]
    assert vars(found["echo"])["prefix"] == "> "


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("calculater", "'calculater' is not known. Known: calculator, or a dotted path"),
        ("no.such.package.Tool", "cannot import 'no.such.package' "),
        (f"{CASES}.Gone", "has no class Gone with `async def call`"),
        (f"{CASES}.by_name", "has no class by_name with `async def call`"),
        (f"{CASES}.NoTool", "is not a tool; a tool has name, description"),
        (f"{CASES}.Unready", "cannot be built: OSError: no index"),
    ],
)
def test_what_is_no_tool(path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tools_of(MultiTurnConfig(tools=[path]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("tools: [", "cannot read"),
        ("- a", "has no list `tools`"),
        ("tools: [{config: {}}]", "has no class_name"),
        ("tools: [{class_name: calculator, tool_schema: {}}]", "'tool_schema' is not read (a tool's schema is"),
        ("tools: [{class_name: calculator, config: [1]}]", "must be a mapping"),
        ("tools: [{class_name: calculator, config: {digits: 3}}]", "cannot be built: TypeError"),
        ("tools: []", "no tool is named"),
    ],
)
def test_what_is_no_list_of_tools(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "tools.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        tools_of(MultiTurnConfig(tool_config_path=str(file)))
    assert message in str(caught.value)


def test_a_name_means_one_tool() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'calc'"):
        tools_of(MultiTurnConfig(tools=["calculator", "calculator"]))

"""The tools of a run, from its configuration. Invariant: what cannot be built is refused before anything starts.

`tools` lists short names or dotted paths of classes that are built without arguments. `tool_config_path` names a YAML
file in verl's layout, whose entries have arguments:

    tools:
      - class_name: my.module.Search
        config: {index: wiki}
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import yaml

from verl_core.config.schema import MultiTurnConfig
from verl_core.errors import ConfigError
from verl_core.tools.interface import Tool

BUILT_IN = {"calculator": "verl_core.tools.calculator.Calculator"}
_KEY = "actor_rollout_ref.rollout.multi_turn"
_CONTRACT = "name, description, parameters, timeout_s and `async def call(self, arguments)`"


def tools_of(config: MultiTurnConfig) -> dict[str, Tool]:
    """New instances by name, in the order of the configuration.

    Raises:
        ConfigError: none is named, a file or class cannot be found or built, it is no tool, or two share a name.
    """
    found: dict[str, Tool] = {}
    for path, arguments in _entries(config):
        tool = _built(path, arguments)
        if tool.name in found:
            raise ConfigError(f"{_KEY}: two tools are called {tool.name!r}; the model could not tell them apart")
        found[tool.name] = tool
    if not found:
        raise ConfigError(f"{_KEY}.tools: no tool is named; give one, such as calculator, or {_KEY}.tool_config_path")
    return found


def _entries(config: MultiTurnConfig) -> list[tuple[str, dict[str, Any]]]:
    if not config.tool_config_path:
        return [(path, {}) for path in config.tools]
    file = Path(config.tool_config_path)
    try:
        tree = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{_KEY}.tool_config_path: cannot read {file} (seen from {Path.cwd()}): {error}") from error
    listed = tree.get("tools") if isinstance(tree, dict) else None
    if not isinstance(listed, list):
        raise ConfigError(f"{_KEY}.tool_config_path: {file} has no list `tools`")
    return [_entry(file, entry) for entry in listed]


def _entry(file: Path, entry: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
        raise ConfigError(f"{_KEY}.tool_config_path: {file}: an entry of `tools` has no class_name: {entry!r}")
    if unknown := sorted(set(entry) - {"class_name", "config"}):
        told = " (a tool's schema is its attribute `parameters`)" if "tool_schema" in unknown else ""
        raise ConfigError(f"{_KEY}.tool_config_path: {file}: {unknown[0]!r} is not read{told}; delete it")
    arguments = entry.get("config") or {}
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise ConfigError(f"{_KEY}.tool_config_path: {file}: config of {entry['class_name']} must be a mapping")
    return entry["class_name"], arguments


def _built(path: str, arguments: dict[str, Any]) -> Tool:
    made = _class_at(BUILT_IN.get(path, path))
    try:
        tool: Tool = made(**arguments)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(f"{_KEY}: tool {path!r} cannot be built: {type(error).__name__}: {error}") from error
    fields = {"name": str, "description": str, "parameters": dict, "timeout_s": (int, float)}
    if any(not isinstance(getattr(tool, name, None), kind) for name, kind in fields.items()):  # type: ignore[arg-type]
        raise ConfigError(f"{_KEY}: {path!r} is not a tool; a tool has {_CONTRACT}")
    if not tool.name or tool.timeout_s <= 0:
        raise ConfigError(f"{_KEY}: tool {path!r} needs a name and a timeout_s above 0")
    return tool


def _class_at(path: str) -> Any:
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"{_KEY}.tools: {path!r} is not known. Known: {known}, or a dotted path package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing the user's module may raise anything
        raise ConfigError(
            f"{_KEY}: tool {path!r}: cannot import {module_name!r} ({type(error).__name__}: {error}). "
            "Is it on PYTHONPATH?"
        ) from error
    found = vars(module).get(class_name)
    if not inspect.isclass(found) or not inspect.iscoroutinefunction(inspect.getattr_static(found, "call", None)):
        raise ConfigError(f"{_KEY}: tool {path!r}: {module_name} has no class {class_name} with `async def call`.")
    return found

"""From a nested mapping to the dataclasses. Invariant: a value enters only with the type its field declares.

Three conversions are lossless and allowed: a whole number for a float, a float without fraction for a whole number
(some wires know one kind of number), and text such as `1e-5` for a float (YAML 1.1 readers take it for text).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from verl_core.config.keys import field_types, is_free_form, nearest, paths
from verl_core.config.schema import RunConfig
from verl_core.config.unsupported import advice

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
_KINDS = {int: "whole number", float: "number", str: "text", bool: "boolean", NoneType: "null"}


class _Mismatch(Exception):
    """A value does not have the declared type; carries what was expected."""


@dataclass
class TypedReader:
    """Reads one tree and collects every problem instead of stopping at the first.

    Attributes:
        origin: dotted key -> where it was set; named in the messages.
        problems: messages, each starting with the key.
        mistyped: keys whose value was refused and stands at its default, so later checks know not to judge it.
    """

    origin: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    mistyped: set[str] = field(default_factory=set)

    def read(self, tree: Mapping[str, Any]) -> RunConfig:
        """The configuration; with `problems`, a best effort to run the checks on."""
        config: RunConfig = self.section(RunConfig, tree, "")
        return config

    def section(self, section: type, tree: Mapping[Any, Any], prefix: str) -> Any:
        """One section; `prefix` is its dotted key with a dot behind it, or empty."""
        hints = field_types(section)
        given: dict[str, Any] = {}
        for name, value in tree.items():
            key = f"{prefix}{name}"
            if name not in hints:
                self._unknown(key, value)
                continue
            hint = hints[name]
            if is_dataclass(hint) and isinstance(hint, type):
                if isinstance(value, Mapping):
                    given[name] = self.section(hint, value, f"{key}.")
                else:
                    self._refuse(key, "a section with settings of its own", value)
            else:
                self._leaf(key, hint, value, given)
        return section(**given)

    def _leaf(self, key: str, hint: Any, value: Any, given: dict[str, Any]) -> None:
        if isinstance(value, Mapping) and not is_free_form(key):
            below = [path for path, _ in paths(value, f"{key}.")]
            known = [path for path in below if advice(path)]
            for path in known:
                self._unknown(path, None)
            if known:
                return
        try:
            given[key.rsplit(".", 1)[-1]] = convert(hint, value)
        except _Mismatch as expected:
            self._refuse(key, str(expected), value)

    def _refuse(self, key: str, expected: str, value: Any) -> None:
        self.mistyped.add(key)
        self.problems.append(f"{key}: expected {expected}, got {shown(value)}{self._from(key)}")

    def _unknown(self, key: str, value: Any) -> None:
        for path in [path for path, _ in paths(value, f"{key}.")] if isinstance(value, Mapping) and value else [key]:
            known_in_verl = advice(path)
            near = nearest(path)
            told = known_in_verl or ("unknown key" + (f"; did you mean {near}?" if near else ""))
            self.problems.append(f"{path}: {told}{self._from(path)}")

    def _from(self, key: str) -> str:
        inside = (place for path, place in self.origin.items() if path.startswith(f"{key}."))
        place = self.origin.get(key) or next(inside, "")
        return f" (set in {place})" if place else ""


def shown(value: Any) -> str:
    """A value with its kind, as messages print it."""
    kind = "section" if isinstance(value, Mapping) else "list" if isinstance(value, list) else _KINDS.get(type(value))
    return "null" if value is None else f"{value!r} ({kind or type(value).__name__})"


def expected_of(hint: Any) -> str:
    """A type hint in words."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(expected_of(part) for part in get_args(hint))
    if get_origin(hint) is list:
        return f"a list, each entry {expected_of(get_args(hint)[0])}"
    return "a section" if get_origin(hint) is dict else _WORDS[hint]


def convert(hint: Any, value: Any) -> Any:
    """The value as the hinted type. Raises `_Mismatch` with what was expected."""
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        return _convert_union(hint, value)
    if kind is Literal:
        return _convert_choice(hint, value)
    if kind is list and isinstance(value, list):
        return _convert_list(hint, value)
    if kind is dict and isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    if kind in (list, dict):
        raise _Mismatch(expected_of(hint))
    return _convert_scalar(hint, value)


def _convert_union(hint: Any, value: Any) -> Any:
    for part in get_args(hint):
        try:
            return convert(part, value)
        except _Mismatch:
            continue
    raise _Mismatch(expected_of(hint))


def _convert_list(hint: Any, value: list[Any]) -> list[Any]:
    try:
        return [convert(get_args(hint)[0], entry) for entry in value]
    except _Mismatch as entry:
        raise _Mismatch(expected_of(hint)) from entry


def _convert_choice(hint: Any, value: Any) -> Any:
    choices = get_args(hint)
    if value is False and "off" in choices:  # YAML reads a bare `off` as false
        return "off"
    if isinstance(value, str) and value in choices:
        return value
    raise _Mismatch(expected_of(hint))


def _convert_scalar(hint: Any, value: Any) -> Any:
    if type(value) is hint:  # exact: True is an int to isinstance
        return value
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    raise _Mismatch(expected_of(hint))

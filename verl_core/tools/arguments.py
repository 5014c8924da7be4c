"""Arguments against a tool's schema: what a model gets wrong most often, told in words it can act on.

Invariant: arguments that pass have every required name and no value of another primitive type than the schema says.
Nested schemas, enums and patterns are the tool's own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def argument_problem(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with the arguments; empty when nothing is."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in arguments]:
        return f"argument {missing[0]!r} is missing"
    if schema.get("additionalProperties") is False and (unknown := sorted(set(arguments) - set(properties))):
        return f"there is no argument {unknown[0]!r}; there are {', '.join(sorted(properties)) or 'none'}"
    for name, value in arguments.items():
        schema_of_one = properties.get(name)
        wanted = schema_of_one.get("type") if isinstance(schema_of_one, Mapping) else None  # `true` allows anything
        kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
        if kinds and not any(_is_a(kind, value) for kind in kinds):
            return f"argument {name!r} must be {' or '.join(kinds)}"
    return ""


def _is_a(kind: str, value: Any) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False  # bool is an int in Python, not in JSON
    return isinstance(value, _TYPES.get(kind, (object,)))

"""The dotted keys of the schema. Invariant: derived from the dataclasses alone; none can be forgotten or invented."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_origin, get_type_hints

from verl_core.config.schema import RunConfig


@cache
def field_types(section: type) -> dict[str, Any]:
    """Field name -> resolved type hint of one dataclass."""
    hints = get_type_hints(section)
    return {item.name: hints[item.name] for item in fields(section)}


def _walk(section: type, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    for name, hint in field_types(section).items():
        key = f"{prefix}{name}"
        if is_dataclass(hint) and isinstance(hint, type):
            yield key, hint, True
            yield from _walk(hint, f"{key}.")
        else:
            yield key, hint, False


@cache
def leaf_types() -> dict[str, Any]:
    """Every setting -> its type hint."""
    return {key: hint for key, hint, section in _walk(RunConfig, "") if not section}


@cache
def sections() -> frozenset[str]:
    """Every dotted section."""
    return frozenset(key for key, _, section in _walk(RunConfig, "") if section)


def is_free_form(key: str) -> bool:
    """Whether the setting is a mapping whose keys are the user's own."""
    return get_origin(leaf_types().get(key)) is dict


def paths(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything set in a nested mapping, known or not. A free-form setting is one value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not is_free_form(key):
            yield from paths(value, f"{key}.")
        else:
            yield key, value


def nearest(key: str) -> str:
    """The valid key that the user most likely meant; empty when none is near.

    A key that lacks its leading sections is matched by its end, anything else by similarity.
    """
    known = [*leaf_types(), *sorted(sections())]
    by_end = [candidate for candidate in known if candidate.endswith(f".{key}")]
    same_name = [candidate for candidate in known if candidate.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return (by_end or close or same_name or [""])[0]

"""The registry of checks. Invariant: a check reads the configuration, changes nothing, yields messages; all are run.

A message starts with the key it is about and names every other key involved, so that what stands on a refused value can
be left out. Checks live in `checks_*.py`, one small function each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from verl_core.config.keys import paths
from verl_core.config.schema import RunConfig


@dataclass(frozen=True)
class Facts:
    """What a check may look at: the configuration, and where each setting came from (default ones are absent)."""

    config: RunConfig
    origin: Mapping[str, str]

    @cached_property
    def values(self) -> dict[str, Any]:
        """Dotted key -> value."""
        return dict(paths(asdict(self.config)))

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Dotted key -> default."""
        return dict(paths(asdict(RunConfig())))

    def given(self, key: str) -> bool:
        """Whether the user chose this value: it was written down and is not the default.

        A written default changes nothing, used or not; so a resolved configuration, which writes down everything, may
        be the source of another run.
        """
        return key in self.origin and self.values[key] != self.defaults[key]

    def given_below(self, section: str) -> list[str]:
        """The settings of a section that the user chose, in schema order."""
        return [key for key in self.values if key.startswith(f"{section}.") and self.given(key)]


Check = Callable[[Facts], Iterator[str]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check."""
    CHECKS.append(function)
    return function


def no_effect(facts: Facts, keys: list[str], because: str) -> Iterator[str]:
    """One message per setting of `keys` that the user chose although nothing reads it."""
    for key in keys:
        if facts.given(key):
            yield f"{key}: has no effect {because} (set in {facts.origin[key]}); {_cure(facts, key)}"


def _cure(facts: Facts, key: str) -> str:
    """An override can be left out; what a file says can be overridden, too."""
    if facts.origin[key].startswith("override "):
        return "delete it"
    return f"delete it, or set it to its default: {key}={json.dumps(facts.defaults[key])}"

"""`python -m verl_core.config.explain CONFIG [OVERRIDES...]`: the resolved tree, and per setting where it came from."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from verl_core.config.compose import Resolved, resolve
from verl_core.errors import ConfigError

_COLUMN = 64  # where the origins start, unless the setting is longer


def explain(resolved: Resolved) -> str:
    """YAML of the whole configuration; each line ends in a comment that names its origin."""
    return "\n".join(_lines(resolved.config, "", resolved.origin)) + "\n"


def _lines(section: Any, prefix: str, origin: dict[str, str]) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    values = vars(section)
    for item in fields(section):
        key, value = f"{prefix}{item.name}", values[item.name]
        if is_dataclass(value):
            yield f"{indent}{item.name}:"
            yield from _lines(value, f"{key}.", origin)
        else:
            yield f"{indent}{item.name}: {_inline(value)}".ljust(_COLUMN) + f"  # {origin[key]}"


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return str(text).removesuffix("\n").removesuffix("\n...")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the explanation; 2 and the problems on stderr when the configuration is refused."""
    parser = argparse.ArgumentParser(prog="python -m verl_core.config", description=__doc__)
    parser.add_argument("config", help="YAML file")
    parser.add_argument("override", nargs="*", help="key=value, the value in YAML")
    parser.add_argument(
        "--overrides", type=json.loads, default=[], help="the same as one JSON list, as `pyflyte run` has it"
    )
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(explain(resolve(given.config, [*given.overrides, *given.override])))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

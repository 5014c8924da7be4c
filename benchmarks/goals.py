"""Goals beside measurements. Invariant: a goal is written down before anything is measured and never moved to fit."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}
OUT = Path(__file__).resolve().parent.parent / "out"


@dataclass(frozen=True)
class Goal:
    """`value op goal`, judged when it is made."""

    name: str
    value: Any
    op: str
    goal: Any

    @property
    def ok(self) -> bool:
        """Whether the goal is met; a value that is missing or NaN meets none."""
        return self.value is not None and _OPERATORS[self.op](self.value, self.goal)


def report(file: str, goals: list[Goal], details: Mapping[str, Any]) -> None:
    """Write out/<file> and print the goals; ends the process with status 1 when one is missed."""
    OUT.mkdir(exist_ok=True)
    rows = [{**asdict(goal), "ok": goal.ok} for goal in goals]
    (OUT / file).write_text(json.dumps({"goals": rows, **details}, indent=1) + "\n")
    for row in rows:
        print(f"{'ok    ' if row['ok'] else 'MISSED'} {row['name']} = {row['value']} (goal {row['op']} {row['goal']})")
    print(f"written to out/{file}")
    if not all(goal.ok for goal in goals):
        sys.exit(1)

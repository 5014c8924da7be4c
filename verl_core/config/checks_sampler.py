"""Checks of `data.sampler.*`."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name

_SAMPLER = "data.sampler"


@check
def rows_have_one_sampler(facts: Facts) -> Iterator[str]:
    """A built-in one or one's own; its settings, and those of the order it takes the place of, are read accordingly."""
    sampler = facts.config.data.sampler
    if sampler.name:
        yield from unknown_name(f"{_SAMPLER}.name", sampler.name, names.SAMPLERS)
    if sampler.name and sampler.class_path:
        yield f"{_SAMPLER}.class_path: {_SAMPLER}.name is given too; delete one of them"
    if sampler.name or sampler.class_path:
        yield from no_effect(facts, ["data.shuffle"], f"with {_SAMPLER}, which decides the order")
    else:
        yield from no_effect(facts, [f"{_SAMPLER}.kwargs"], f"without {_SAMPLER}.name or {_SAMPLER}.class_path")

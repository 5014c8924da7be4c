"""Samplers by name or import path. Invariant: what is returned has the methods of `Sampler`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import cast

from verl_core.config.schema import SamplingConfig
from verl_core.data.row import PromptRow
from verl_core.data.samplers.difficulty import DifficultySampler
from verl_core.data.samplers.interface import Sampler
from verl_core.errors import ConfigError

_BUILT_IN: dict[str, type] = {"difficulty": DifficultySampler}
_METHODS = ("draw", "update", "state_dict", "load_state_dict")


def built_in() -> list[str]:
    """Names that data.sampler.name may have."""
    return sorted(_BUILT_IN)


def load_sampler(config: SamplingConfig, rows: Sequence[PromptRow], seed: int) -> Sampler | None:
    """The configured sampler; None = epochs in seeded order.

    Raises:
        ConfigError: class_path cannot be imported, is no sampler, or does not take data.sampler.kwargs.
    """
    if not config.name and not config.class_path:
        return None
    cls = _BUILT_IN[config.name] if config.name else _imported(config.class_path)
    try:
        inspect.signature(cls).bind(rows, seed, **config.kwargs)
    except TypeError as error:
        raise ConfigError(
            f"data.sampler.kwargs: {cls.__name__} is made as {cls.__name__}(rows, seed, **kwargs), but {error}"
        ) from None
    made = cls(rows, seed, **config.kwargs)
    if missing := [name for name in _METHODS if not callable(getattr(made, name, None))]:
        raise ConfigError(f"data.sampler.class_path: {cls.__name__} has no {missing[0]}(); see verl_core.data.samplers")
    return cast(Sampler, made)


def _imported(path: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"data.sampler.class_path: cannot import {path!r}: {error}; give package.module.Class"
        ) from None
    if not isinstance(found, type):
        raise ConfigError(f"data.sampler.class_path: {path!r} is not a class")
    return found

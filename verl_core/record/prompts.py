"""Prompts as JSON values. Invariant: everything but numpy types comes back as it was; ground truths must be JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from verl_core.record.canonical import plain
from verl_core.trajectory import Prompt

_NAMES = tuple(field.name for field in fields(Prompt))


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    """All fields as JSON values; `token_ids` as a list."""
    return {name: plain(getattr(prompt, name)) for name in _NAMES}


def prompt_from_json(value: dict[str, Any]) -> Prompt:
    """Inverse of `prompt_to_json`.

    Raises:
        KeyError: a field is missing.
    """
    known = {name: value[name] for name in _NAMES}
    return Prompt(**{**known, "token_ids": np.asarray(value["token_ids"], dtype=np.int32)})

"""Canonical JSON: equal values give equal bytes, so that files can be compared and hashed.

Invariant: sorted keys, no NaN or infinity (they become null), numpy values become plain ones, one newline at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: tuples and arrays become lists, numpy scalars numbers, NaN and infinity None.

    Raises:
        TypeError: there is a value with no JSON form (an object of a user class, bytes, ...).
    """
    if value is None or (isinstance(value, bool | str | int) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    raise TypeError(f"{type(value).__name__} has no JSON form: {value!r:.80}")


def compact(value: Any) -> bytes:
    """One line of canonical JSON without the newline."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def pretty(value: Any) -> bytes:
    """Canonical JSON that a person can read, with the newline."""
    return (json.dumps(plain(value), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

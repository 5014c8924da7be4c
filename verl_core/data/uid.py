"""Uids of groups. Invariant: a function of (stream, seed, ordinal, attempt), so a resumed run serves the same."""

from __future__ import annotations

import hashlib


def uid_of(seed: int, ordinal: int, attempt: int = 0, stream: str = "train") -> str:
    """32 hex digits; no two (seed, ordinal, attempt, stream) share one.

    Args:
        stream: keeps streams apart that share seed and ordinals (training, validation).
    """
    return hashlib.sha256(f"{stream}/{seed}/{ordinal}/{attempt}".encode()).hexdigest()[:32]

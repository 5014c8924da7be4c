"""What the owner of a reward process and the process say to each other, pickled over a socket.

Owner: RewardConfig once, then any number of `Load` and list[Sample]. Process: `Loaded` or RewardError; after a
`Loaded` for a list of samples, one Reward per sample in order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Import the functions of these data sources; nothing is scored."""

    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The functions are imported; the clock of the first sample starts here."""

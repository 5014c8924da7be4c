"""What the owner of a reward process and the process say to each other, pickled over a socket.

Owner: RewardConfig once, then any number of `Load` and lists of packed samples. Process: `Loaded` or RewardError; after
a `Loaded` for a list of samples, lists of packed rewards, which together are one per sample in order. The number of the
sample it is at stands in shared memory (`Progress`), so that rewards may travel together and still it is known which
sample hung.
"""

from __future__ import annotations

from dataclasses import dataclass

FLUSH_S = 0.005  # a Reward waits this long at most for others, plus the time of the sample that is being scored


@dataclass(frozen=True, slots=True)
class Load:
    """Import the functions of these data sources; nothing is scored."""

    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The functions are imported; the clock of the first sample starts here."""

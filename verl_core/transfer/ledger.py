"""Ledger: what the replay buffer reports, event by event; `record.Journal` keeps it on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Event = Literal["served", "finished", "failed", "reissued", "adopted", "claimed", "trained", "dropped"]


class Ledger(Protocol):
    """The replay buffer names the uid of the attempt, and always gives the detail `base_uids`, aligned with it: per
    base uid there is one `served` and in the end one `trained` or one `dropped`. `adopted` takes the place of `served`
    for a group that an earlier process of the run served and finished. `served`, `claimed`, `trained` and `dropped`
    also give `step`; `failed` and `dropped` give `reason` and `errors`."""

    def record(self, event: Event, uids: Sequence[str], **detail: Any) -> None:
        """Account for `uids`; `detail` is plain JSON."""

"""The contract of a sampler. Invariant: what it draws depends on its state alone, and its state is all in `state_dict`,
so a run that is resumed serves the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Sampler(Protocol):
    """Made as Class(rows, seed, **kwargs): the training rows (`PromptRow`, in file order), data.seed, and
    data.sampler.kwargs. Used by one thread."""

    def draw(self) -> int:
        """Position of the row that is served next. No other source of chance than the state: a draw after
        `load_state_dict` gives what the draw after `state_dict` gave."""

    def update(self, outcomes: Mapping[int, float]) -> None:
        """A step is over: mean score of each row's sessions, by position; of the groups that a filter dropped, too.
        Called once per step, before anything is drawn for the next."""

    def state_dict(self) -> dict[str, Any]:
        """JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""

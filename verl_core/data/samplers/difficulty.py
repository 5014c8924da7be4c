"""`difficulty`: rows that are solved about half of the time are served most. Invariant: every row keeps a chance.

The weight of a row is floor + 4 p (1 - p), where p is the share of its sessions that were right: a running mean with
weight `momentum` on the latest, `prior` before the row was served. p (1 - p) is the variance of a session's score, and
with it the expected size of a group method's advantages (Bae et al. 2025, arXiv 2504.03380). Rows are drawn with
replacement, draw number d by the d-th random word of the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from verl_core.data.row import PromptRow
from verl_core.errors import ConfigError

_STREAM = 1  # keeps the words apart from those of epochs
_WORDS = 1.0 / 2**64


class DifficultySampler:
    """Args:
    rows: to draw from.
    seed: of the draws.
    momentum: weight of the latest mean score, in (0, 1].
    floor: weight that every row has at least, greater than 0; the largest weight is floor + 1.
    prior: p of rows that were not served yet, in [0, 1].

    Raises:
        ConfigError: a number is outside its range.
    """

    def __init__(
        self, rows: Sequence[PromptRow], seed: int, momentum: float = 0.5, floor: float = 0.1, prior: float = 0.5
    ) -> None:
        if not (0 < momentum <= 1 and floor > 0 and 0 <= prior <= 1):
            raise ConfigError(
                "data.sampler.kwargs: difficulty needs 0 < momentum <= 1, floor > 0 and 0 <= prior <= 1, got "
                f"momentum={momentum}, floor={floor}, prior={prior}"
            )
        self._seed, self._momentum, self._floor, self._prior = seed, momentum, floor, prior
        self._rows = len(rows)
        self._known: dict[int, float] = {}
        self._drawn = 0
        self._edges = self._weights().cumsum()

    def draw(self) -> int:
        """See Sampler."""
        words = np.random.PCG64(np.random.SeedSequence([self._seed, _STREAM, self._drawn])).random_raw(1)
        self._drawn += 1
        at = float(words[0]) * _WORDS * float(self._edges[-1])
        return min(int(np.searchsorted(self._edges, at, side="right")), self._rows - 1)

    def update(self, outcomes: Mapping[int, float]) -> None:
        """See Sampler. Scores are cut to 0..1."""
        for row, score in outcomes.items():
            latest = min(1.0, max(0.0, score))
            before = self._known.get(row)
            self._known[row] = latest if before is None else before + self._momentum * (latest - before)
        self._edges = self._weights().cumsum()

    def weight(self, row: int) -> float:
        """Of a row, now."""
        solved = self._known.get(row, self._prior)
        return self._floor + 4 * solved * (1 - solved)

    def state_dict(self) -> dict[str, Any]:
        """See Sampler."""
        return {"drawn": self._drawn, "solved": {str(row): self._known[row] for row in sorted(self._known)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Sampler."""
        self._drawn = int(state["drawn"])
        self._known = {int(row): float(solved) for row, solved in state["solved"].items()}
        self._edges = self._weights().cumsum()

    def _weights(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        weights = np.full(self._rows, self._floor + 4 * self._prior * (1 - self._prior))
        for row in self._known:
            weights[row] = self.weight(row)
        return weights

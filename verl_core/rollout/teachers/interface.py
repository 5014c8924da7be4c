"""What a teacher is asked and answers. Token ids in; log-probs at temperature 1 out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from verl_core.trajectory import Float32, Int32


@dataclass(frozen=True, slots=True)
class TeacherRequest:
    """One sequence.

    Attributes:
        key: of its trajectory, for messages.
        ids: int32 [P + R], prompt and response as they were sampled.
        start: P, at least 1.
    """

    key: str
    ids: Int32
    start: int


@dataclass(frozen=True, slots=True)
class TeacherRow:
    """The answer, one entry per response token.

    Attributes:
        log_probs: float32 [R], nats, of the response's own tokens.
        topk_ids: int32 [R, K], the most probable tokens at each place, best first.
        topk_log_probs: float32 [R, K]; -inf, with id 0, where there is none.
    """

    log_probs: Float32
    topk_ids: Int32
    topk_log_probs: Float32


class ScoringEngine(Protocol):
    """A model inside one server process. Used by one thread."""

    def start(self) -> None:
        """Load the model."""

    def score(self, requests: Sequence[TeacherRequest], topk: int, vocabulary: int) -> list[TeacherRow]:
        """Answers in order.

        Args:
            topk: K.
            vocabulary: ids from here on are no candidates: the policy has no such tokens.

        Raises:
            TeacherError: a sequence can never be scored.
            EngineDead: the engine died.
        """


def best(ids: Int32, log_probs: Float32, topk: int, vocabulary: int) -> tuple[Int32, Float32]:
    """The `topk` best of some candidates, best first, equals by their ids: (ids int32 [K], log-probs float32 [K])."""
    ours = ids < vocabulary
    ids, log_probs = ids[ours], log_probs[ours]
    order = np.lexsort((ids, -log_probs))[:topk]
    chosen, values = np.zeros(topk, dtype=np.int32), np.full(topk, -np.inf, dtype=np.float32)
    chosen[: len(order)], values[: len(order)] = ids[order], log_probs[order]
    return chosen, values

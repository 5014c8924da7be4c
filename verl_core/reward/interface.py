"""The contract of a reward function, verl's signature, and of the scorer in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_core.trajectory import Int32, Reward


@dataclass(frozen=True, slots=True, eq=False)
class SampleTokens:
    """What a reward model reads: the ids as they were sampled, and the chat for one of another vocabulary."""

    prompt_ids: Int32
    response_ids: Int32
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward function is asked about. `solution` is the decoded response without special tokens; `tokens` are
    there for a reward model only, and never travel to a reward process."""

    key: str
    data_source: str
    solution: str
    ground_truth: Any
    extra_info: dict[str, Any]
    tokens: SampleTokens | None = None


class RewardFunction(Protocol):
    """compute_score(data_source, solution_str, ground_truth, extra_info): a number, or a dict with at least `score`."""

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
    ) -> float | dict[str, Any]:
        """Score one sample."""


class Scorer(Protocol):
    """Scores many samples within per-sample time limits."""

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """One Reward per sample, in order; failures come back quarantined, never as exceptions.

        Raises:
            RewardError: more than `error_budget` of the samples were quarantined; the message lists the reasons.
        """

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        """Like `score`, whatever the share of failures: for a part of a step's samples."""

    def shutdown(self) -> None:
        """End the processes."""

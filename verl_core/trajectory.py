"""The words of the domain as plain values: Prompt, Segment, Trajectory, Reward.

Invariant: token in, token out. Ids are fixed when a prompt is tokenized or a token is sampled; nothing here tokenizes
again. Every trajectory names the weight version of each of its segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]

StopReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset row served once: the start of a group.

    Attributes:
        uid: hex, no underscore; new for every attempt, so a late writer of an old attempt can never mix in.
        base_uid: the uid of attempt 0; the key of the accounting.
        attempt: 0, 1, ... counts re-issues.
        row: position of the row in the dataset file(s).
        ordinal: position in the order of serving, over all epochs; rows of a batch are sorted by it.
        step: global step it was first served for.
        n: sessions to run.
        token_ids: int32 [P], from the chat template, once.
        messages: the chat as given, for dumps and tools; never tokenized again.
        validation: sampled with rollout.val_kwargs instead of the training parameters.
    """

    uid: str
    base_uid: str
    attempt: int
    row: int
    ordinal: int
    step: int
    n: int
    token_ids: Int32
    data_source: str
    ground_truth: Any
    messages: list[dict[str, Any]] = field(default_factory=list)
    extra_info: dict[str, Any] = field(default_factory=dict)
    validation: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of response tokens produced under one weight version (tool text carries the version of the turn before)."""

    weight_version: int
    length: int


@dataclass(slots=True)
class Trajectory:
    """One (prompt, response) record of a session.

    Attributes:
        uid, session, index: the key; `index` counts the outputs of one session.
        prompt_ids: int32 [P].
        response_ids: int32 [R].
        response_mask: bool [R]; True where the policy sampled the token, False for tool or user text.
        rollout_log_probs: float32 [R], nats, under the sampling distribution; meaningless where the mask is False.
        segments: lengths sum to R.
        ordinal: of the prompt, so that order is restored after any detour.
    """

    uid: str
    session: int
    index: int
    ordinal: int
    prompt_ids: Int32
    response_ids: Int32
    response_mask: Bool
    rollout_log_probs: Float32
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    data_source: str
    num_turns: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`{uid}_{session}_{index}`, the trajectory's name in the store."""
        return f"{self.uid}_{self.session}_{self.index}"

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key that does not depend on when or where the trajectory was finished."""
        return self.ordinal, self.session, self.index

    @property
    def min_version(self) -> int:
        """Oldest weight version used; the trajectory's staleness is measured from it."""
        return min(segment.weight_version for segment in self.segments)


def last_outputs(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int], Trajectory]:
    """(uid, session) -> the session's last output: the one that its score is of."""
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.index)
    return {(trajectory.uid, trajectory.session): trajectory for trajectory in ordered}


RewardStatus = Literal["ok", "raised", "timeout", "not_finite", "bad_type"]


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of one trajectory, or why there is none.

    Attributes:
        key: the trajectory's key.
        score: finite; 0.0 when quarantined.
        components: named parts and anything else the function returned that is JSON.
        status: "ok", or the kind of quarantine.
        reason: message of the quarantine; empty when ok.
    """

    key: str
    score: float
    components: dict[str, Any] = field(default_factory=dict)
    status: RewardStatus = "ok"
    reason: str = ""

    @property
    def quarantined(self) -> bool:
        """Whether the trajectory must not be trained on."""
        return self.status != "ok"

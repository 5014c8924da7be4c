"""Conversation: the growing response of one session. Invariant: ids are only ever appended; every one has a mask, a
log-prob and a weight version. What the policy did not sample has mask False and log-prob NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_core.rollout.generation import joined
from verl_core.rollout.interface import Generation
from verl_core.trajectory import Prompt, Segment, StopReason, Trajectory

_NOTHING = Generation((), (), "abort", ())
_NOT_SAMPLED = float("nan")


class Conversation:
    """One session's response.

    Args:
        prompt: of the group.
        budget: tokens of all turns and answers together.
    """

    def __init__(self, prompt: Prompt, budget: int) -> None:
        self._prompt, self._budget = prompt, budget
        self._whole = _NOTHING
        self._mask: list[bool] = []

    @property
    def length(self) -> int:
        """Tokens so far, answers included."""
        return len(self._mask)

    @property
    def room(self) -> int:
        """Tokens that are left."""
        return self._budget - self.length

    @property
    def ids(self) -> list[int]:
        """Prompt and response, as the next request sends them."""
        return [*self._prompt.token_ids.tolist(), *self._whole.token_ids]

    def add_sampled(self, turn: Generation) -> None:
        """A turn of the policy."""
        self._whole = joined(self._whole, turn)
        self._mask += [True] * len(turn.token_ids)

    def add_answers(self, ids: Sequence[int]) -> None:
        """What tools said; it carries the weight version of the token before it."""
        version = self._whole.segments[-1].weight_version
        segments = (Segment(version, len(ids)),) if ids else ()
        told = Generation(tuple(ids), (_NOT_SAMPLED,) * len(ids), self._whole.stop_reason, segments)
        self._whole = joined(self._whole, told)
        self._mask += [False] * len(ids)

    def trajectory(self, session: int, stop_reason: StopReason, num_turns: int, extra: dict[str, Any]) -> Trajectory:
        """The session as a trajectory."""
        return Trajectory(
            uid=self._prompt.uid,
            session=session,
            index=0,
            ordinal=self._prompt.ordinal,
            prompt_ids=self._prompt.token_ids.astype(np.int32, copy=False),
            response_ids=np.asarray(self._whole.token_ids, dtype=np.int32),
            response_mask=np.asarray(self._mask, dtype=np.bool_),
            rollout_log_probs=np.asarray(self._whole.log_probs, dtype=np.float32),
            segments=self._whole.segments,
            stop_reason=stop_reason,
            data_source=self._prompt.data_source,
            num_turns=num_turns,
            extra=extra,
        )

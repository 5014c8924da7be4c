"""Watch: whether actors that Ray starts again by itself do come back.

Invariant: an actor that is gone for good is an error at the next look; one that is being started again is an error once
it has been away for `back_s`, with what was last heard of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from verl_core.errors import DeadlineExceeded, RolloutError
from verl_core.rollout.server_state import ServerState

ANSWER_S = 3.0
_LONGEST = 600


class Watch:
    """Args:
    actors: by name for messages: the handle, and the method without arguments that any healthy one answers at once.
    back_s: how long an actor may be away.
    """

    def __init__(self, actors: Mapping[str, tuple[Any, str]], back_s: float) -> None:
        self._actors, self._back_s = dict(actors), back_s
        self._away: dict[str, float] = {}

    def look(self) -> dict[str, Any]:
        """What the healthy ones answer, by name; takes some seconds at most.

        Raises:
            RolloutError: one is gone for good, or could not start again; carries why.
            DeadlineExceeded: one has been away for `back_s`.
        """
        asked = {name: getattr(handle, method).remote() for name, (handle, method) in self._actors.items()}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S)
        answers, now = {}, time.monotonic()
        for name, reference in asked.items():
            answer = _answer(reference)
            if not (why := _why_away(name, answer)):
                self._away.pop(name, None)
                answers[name] = answer
                continue
            away = now - self._away.setdefault(name, now)
            if away >= self._back_s:
                raise DeadlineExceeded(f"{name} to be back", away, why)
        return answers


def _answer(reference: Any) -> Any:
    """What the actor said, or the error in its place."""
    try:
        return ray.get(reference, timeout=0.001)
    except RayError as error:
        return error


def _why_away(name: str, answer: Any) -> str:
    """Empty when the actor is well. Raises RolloutError when it will never be."""
    if isinstance(answer, ActorDiedError):
        raise RolloutError(f"{name} is gone for good: {_short(answer)}")
    if isinstance(answer, GetTimeoutError):
        return f"it does not answer within {ANSWER_S:.0f} s"
    if isinstance(answer, RayError):
        return _short(answer)
    if isinstance(answer, ServerState) and answer.stage != "ready":
        if answer.stage == "failed":
            raise RolloutError(f"{name} was started again and failed: {answer.error}")
        return answer.describe()
    return ""


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"

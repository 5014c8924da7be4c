"""PacedPolicy: the policy, on simulated devices. Invariant: what is computed is what the policy computes; a call
returns when the devices would have been done with it, not before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_core.batch import TrainBatch
from verl_core.engine.interface import LogProbs, PolicyEngine

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pace:
    """Attributes:
    tokens_per_s: prompt and response tokens that one device trains on.
    devices: how many share the work evenly.
    forward_share: cost of log-probs alone, as a share of training.
    """

    tokens_per_s: float
    devices: int
    forward_share: float

    def update_s(self, tokens: int) -> float:
        """Seconds of an update."""
        return tokens / (self.tokens_per_s * self.devices)

    def forward_s(self, tokens: int) -> float:
        """Seconds of log-probs."""
        return self.forward_share * self.update_s(tokens)

    def step_s(self, tokens: int) -> float:
        """Seconds of a step: old log-probs and update."""
        return self.forward_s(tokens) + self.update_s(tokens)


class PacedPolicy:
    """A PolicyEngine around another one. What is not named here is the other one's own.

    Attributes:
        paced_s: simulated seconds of training so far.
        real_s: seconds that this machine needed for it; they lie inside `paced_s`.
        late_s: seconds by which it needed longer than the simulated devices.
    """

    def __init__(self, policy: PolicyEngine, pace: Pace) -> None:
        self._policy, self._pace = policy, pace
        self.paced_s = self.real_s = self.late_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def old_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return self._paced(self._pace.forward_s(tokens_of(batch)), lambda: self._policy.old_log_probs(batch))

    def ref_log_probs(self, batch: TrainBatch) -> LogProbs:
        """See PolicyEngine."""
        return self._paced(self._pace.forward_s(tokens_of(batch)), lambda: self._policy.ref_log_probs(batch))

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """See PolicyEngine."""
        return self._paced(self._pace.update_s(tokens_of(batch)), lambda: self._policy.update(batch, step))

    def _paced(self, seconds: float, work: Callable[[], Result]) -> Result:
        began = time.monotonic()
        result = work()
        real = time.monotonic() - began
        self.real_s += real
        self.paced_s += seconds
        self.late_s += max(0.0, real - seconds)
        time.sleep(max(0.0, seconds - real))
        return result


def tokens_of(batch: TrainBatch) -> int:
    """Prompt and response tokens."""
    return int(batch.prompt_offsets[-1] + batch.response_offsets[-1])

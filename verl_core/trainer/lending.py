"""Lending: whether the trainer's idle devices serve rollout until the next batch is there. Time comes from outside.

A step that waits for M groups at W seconds a group would wait M W (1 - r / (r + t)) less with t trainer devices beside
the r of the rollout; switching over and back costs what it cost lately. Lend when the gain is larger.

Invariant: the decision is a function of the state, and the state is all of what was measured, so that a resumed run
decides as the undisturbed one would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from verl_core.config.schema import HybridRolloutConfig


@dataclass(frozen=True)
class Decision:
    """Attributes:
    lend: whether the devices go to the rollout.
    gain_s, cost_s: seconds a step would wait less, and seconds two switches take; None = not measured yet.
    """

    lend: bool
    gain_s: float | None = None
    cost_s: float | None = None


@dataclass
class LendingState:
    """Attributes:
    ratio: share of a batch that calls the devices back.
    to_rollout_s, to_trainer_s: the newest switches, oldest first.
    waited_s, missing: seconds of waiting for groups so far, and how many were waited for.
    waiting, calm: steps in a row that did, or did not, wait.
    """

    ratio: float
    to_rollout_s: list[float] = field(default_factory=list)
    to_trainer_s: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    missing: int = 0
    waiting: int = 0
    calm: int = 0


class Lending:
    """Args:
    config: trainer.v1.separate_async.hybrid_rollout.
    rollout_devices, trainer_devices: how many there are.
    batch, mini_batch: groups of a step, and of its first update: with fewer the trainer cannot begin.
    """

    def __init__(
        self, config: HybridRolloutConfig, rollout_devices: int, trainer_devices: int, batch: int, mini_batch: int
    ) -> None:
        self._config, self._batch, self._mini = config, batch, mini_batch
        self._shorter = trainer_devices / (rollout_devices + trainer_devices)  # 1 - r / (r + t)
        self.state = LendingState(config.switch_threshold_ratio)

    @property
    def threshold(self) -> int:
        """Groups that must be there before the devices go back to training."""
        return min(self._batch, max(self._mini, round(self.state.ratio * self._batch)))

    def decide(self, ready: int) -> Decision:
        """After a step: lend until `threshold` groups are there, of which `ready` are. Unmeasured costs and gains speak
        for lending: nothing else would measure them."""
        remaining, state = max(0, self.threshold - ready), self.state
        if remaining == 0:
            return Decision(False, 0.0, self._cost())
        gain = remaining * state.waited_s / state.missing * self._shorter if state.missing else None
        cost = self._cost()
        return Decision(gain is None or cost is None or gain > cost, gain, cost)

    def waited(self, seconds: float, missing: int) -> None:
        """A step waited so long for so many groups; moves the threshold when steps keep waiting, or keep not
        waiting."""
        state, config = self.state, self._config
        if missing > 0:
            state.waited_s, state.missing = state.waited_s + seconds, state.missing + missing
        state.waiting, state.calm = (state.waiting + 1, 0) if missing > 0 else (0, state.calm + 1)
        if not config.adaptive_switch_threshold:
            return
        if state.waiting >= config.switch_threshold_release_steps:
            state.ratio = min(1.0, state.ratio + config.switch_threshold_step_up)
        elif state.calm >= config.switch_threshold_release_steps:
            state.ratio = max(self._mini / self._batch, state.ratio - config.switch_threshold_step_down)

    def switched(self, to_rollout: bool, seconds: float) -> None:
        """A switch took so long."""
        recent = self.state.to_rollout_s if to_rollout else self.state.to_trainer_s
        recent.append(seconds)
        del recent[: -self._config.switch_cost_window_size]

    def _cost(self) -> float | None:
        there, back = self.state.to_rollout_s, self.state.to_trainer_s
        return _mean(there) + _mean(back) if there and back else None

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.state = LendingState(**state)


def _mean(values: Sequence[float]) -> float:
    return fmean(values)

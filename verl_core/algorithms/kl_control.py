"""The coefficient of the KL penalty in the reward. Invariant: a controller's whole state is in its state_dict."""

from __future__ import annotations

from typing import Protocol

from verl_core.config.schema.algorithm import KLControlConfig
from verl_core.errors import CheckpointError, ConfigError

ERROR_LIMIT = 0.2


class KLController(Protocol):
    """Owner: the trainer; saved with every checkpoint."""

    @property
    def value(self) -> float:
        """Coefficient to use now, reward units per nat."""

    def update(self, current_kl: float, rows: int) -> None:
        """Tell the controller the KL of a batch (nats per token, mean over rows) and how many rows it had."""

    def state_dict(self) -> dict[str, float]:
        """Everything that changes."""

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Inverse of `state_dict`. Raises CheckpointError when the state is of another controller."""


class FixedKL:
    """A constant."""

    def __init__(self, kl_coef: float) -> None:
        self._value = kl_coef

    @property
    def value(self) -> float:
        """The constant."""
        return self._value

    def update(self, current_kl: float, rows: int) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, float]:
        """The coefficient, although it never moves, so that a checkpoint says what was used."""
        return {"kl_coef": self._value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Nothing to take over: a constant comes from the configuration, which a branch may have changed."""
        _coefficient(state)


class AdaptiveKL:
    """beta <- beta (1 + clip(kl / target - 1, -0.2, 0.2) rows / horizon).

    Source: Ziegler et al. 2019, arXiv 1909.08593, section 2.2.
    """

    def __init__(self, kl_coef: float, target_kl: float, horizon: float) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise ConfigError(
                "algorithm.kl_ctrl: the adaptive controller needs target_kl > 0 and horizon > 0, "
                f"got {target_kl} and {horizon}"
            )
        self._value, self.target_kl, self.horizon = kl_coef, target_kl, horizon

    @property
    def value(self) -> float:
        """Coefficient after all updates so far."""
        return self._value

    def update(self, current_kl: float, rows: int) -> None:
        """One step of proportional control."""
        error = min(max(current_kl / self.target_kl - 1, -ERROR_LIMIT), ERROR_LIMIT)
        self._value *= 1 + error * rows / self.horizon

    def state_dict(self) -> dict[str, float]:
        """The coefficient."""
        return {"kl_coef": self._value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take the coefficient over."""
        self._value = _coefficient(state)


def _coefficient(state: dict[str, float]) -> float:
    if set(state) != {"kl_coef"}:
        raise CheckpointError(f"the state of a KL controller has the key kl_coef only, this one has {sorted(state)}")
    return state["kl_coef"]


def build_kl_controller(config: KLControlConfig) -> KLController:
    """The controller that `algorithm.kl_ctrl` describes."""
    if config.type == "adaptive":
        return AdaptiveKL(config.kl_coef, config.target_kl, config.horizon)
    return FixedKL(config.kl_coef)

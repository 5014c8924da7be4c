"""Trainer modes by name: the value of `trainer.v1.trainer_mode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from verl_core.errors import ConfigError
from verl_core.trainer.ppo import PPOTrainer

T = TypeVar("T", bound=type[PPOTrainer])
_TRAINERS: dict[str, type[PPOTrainer]] = {}


def register_trainer(name: str) -> Callable[[T], T]:
    """Class decorator that makes a mode selectable.

    Raises:
        TypeError: the class is not a PPOTrainer.
        ValueError: the name is taken by another class.
    """

    def register(cls: T) -> T:
        if not issubclass(cls, PPOTrainer):
            raise TypeError(f"{cls!r} must subclass PPOTrainer to be a trainer mode")
        if _TRAINERS.setdefault(name, cls) is not cls:
            raise ValueError(f"trainer mode {name!r} is already {_TRAINERS[name].__name__}; choose another name")
        return cls

    return register


def get_trainer_cls(name: str) -> type[PPOTrainer]:
    """The class of a mode.

    Raises:
        ConfigError: unknown name; lists the known ones.
    """
    import verl_core.trainer.colocate_async
    import verl_core.trainer.separate_async
    import verl_core.trainer.sync  # noqa: F401  these register the built-in modes

    if name not in _TRAINERS:
        raise ConfigError(f"trainer.v1.trainer_mode={name!r} is unknown. Known modes: {', '.join(sorted(_TRAINERS))}")
    return _TRAINERS[name]

"""Registry: names to functions. Invariant: a name means one function for the whole life of the process."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from verl_core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])


class Registry(Generic[F]):
    """One registry per kind of algorithm.

    Args:
        kind: what the entries are, for messages: "advantage estimator".
        setting: the configuration key that picks one: "algorithm.adv_estimator".
    """

    def __init__(self, kind: str, setting: str) -> None:
        self.kind, self.setting = kind, setting
        self._entries: dict[str, F] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator that files a function under `name`.

        Raises:
            ConfigError: the name already belongs to another function.
        """

        def file(function: F) -> F:
            held = self._entries.setdefault(name, function)
            if (held.__module__, held.__qualname__) != (function.__module__, function.__qualname__):
                raise ConfigError(
                    f"two functions claim the {self.kind} {name!r}: {held.__module__}.{held.__qualname__} and "
                    f"{function.__module__}.{function.__qualname__}; rename one"
                )
            return function

        return file

    def get(self, name: str) -> F:
        """The function filed under `name`.

        Raises:
            ConfigError: no such name; the message lists the known ones.
        """
        if name in self._entries:
            return self._entries[name]
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{self.setting}={name!r}: no such {self.kind}.{hint} Known: {', '.join(self.names())}")

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._entries))


def import_siblings(package: str, path: list[str]) -> None:
    """Import every module of a package, so that dropping a file into it is all that a new algorithm needs."""
    for module in sorted(info.name for info in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")

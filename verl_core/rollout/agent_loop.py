"""Agent loops by name. Invariant: a name means one class; an unknown one is an error that lists the known ones."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError
from verl_core.rollout.interface import AgentLoop

BUILT_IN = {  # name -> module that registers it
    "single_turn_agent": "verl_core.rollout.single_turn",
    "tool_agent": "verl_core.rollout.tool_agent",
}


class AgentLoopClass(Protocol):
    """A class whose instances are agent loops. One instance per worker runs all sessions, many at a time: keep what
    belongs to a session in local variables of `run`."""

    def __call__(self, config: RunConfig) -> AgentLoop:
        """Build the loop."""


Registered = TypeVar("Registered", bound=AgentLoopClass)
_known: dict[str, AgentLoopClass] = {}


def register_agent_loop(name: str) -> Callable[[Registered], Registered]:
    """Class decorator: make the class known as `name`.

    Raises:
        ConfigError: another class has the name.
    """

    def register(cls: Registered) -> Registered:
        if _known.get(name, cls) is not cls:
            raise ConfigError(f"two agent loops are called {name!r}: {_known[name]} and {cls}. Rename one.")
        _known[name] = cls
        return cls

    return register


def agent_loop_for(name: str) -> AgentLoopClass:
    """The class registered as `name`, or the one at the dotted path `package.module.Class`.

    Raises:
        ConfigError: there is no such name, module or class, or the class has no coroutine `run`.
    """
    if name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name in _known:
        return _known[name]
    if "." in name:
        return _imported(name)
    known = sorted({*BUILT_IN, *_known})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"actor_rollout_ref.rollout.agent.default_agent_loop={name!r} is not known.{hint} "
        f"Known: {', '.join(known)}, or a dotted path package.module.Class."
    )


def _imported(path: str) -> AgentLoopClass:
    module_name, _, class_name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"agent loop {path!r}: cannot import {module_name!r} ({error}). Is it on PYTHONPATH?"
        ) from error
    found: Any = vars(module).get(class_name)
    if not _is_loop_class(found):
        raise ConfigError(f"agent loop {path!r}: {module_name} has no class {class_name} with `async def run`.")
    loop_class: AgentLoopClass = found
    return loop_class


def _is_loop_class(found: object) -> bool:
    return inspect.isclass(found) and inspect.iscoroutinefunction(inspect.getattr_static(found, "run", None))

"""Named Ray actors of a run: finding, replacing, starting them. Invariant: a name is reused only after its old actor
is gone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from verl_core.deadline import Deadline

_PROBE_S = 10.0
_LOOK_S = 0.05


def find(name: str, namespace: str) -> Any | None:
    """Handle of the named actor, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def attach(name: str, namespace: str, identity: str) -> Any | None:
    """Handle of the named actor if it answers and its `identity()` is the wanted one."""
    actor = find(name, namespace)
    if actor is None:
        return None
    try:
        return actor if ray.get(actor.identity.remote(), timeout=_PROBE_S) == identity else None
    except (RayActorError, GetTimeoutError):
        return None


def remove(name: str, namespace: str, deadline: Deadline) -> None:
    """Kill the named actor if there is one, and wait until its name is free."""
    while (actor := find(name, namespace)) is not None:
        ray.kill(actor)
        deadline.check()
        time.sleep(_LOOK_S)


def was_restarted() -> bool:
    """Asked inside an actor: whether Ray started it before. False outside of one."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


def remove_all(namespace: str, timeout_s: float) -> None:
    """Kill every named actor of the namespace, and wait until all names are free."""
    deadline = Deadline(f"the actors of {namespace} to end", timeout_s, lambda: f"still there: {names}")
    while names := _names(namespace):
        for name in names:
            remove(name, namespace, deadline)
        deadline.check()


def _names(namespace: str) -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == namespace]


def attach_or_start(
    cls: type,
    name: str,
    namespace: str,
    identity: str,
    options: Mapping[str, Any],
    deadline: Deadline,
    *args: object,
) -> Any:
    """The actor that `attach` finds, else a new one in place of whatever has the name. Raises DeadlineExceeded: it was
    not free in time."""
    found = attach(name, namespace, identity)
    if found is not None:
        return found
    remove(name, namespace, deadline)
    return start(cls, name, namespace, options, *args)


def start(
    cls: type, name: str, namespace: str, options: Mapping[str, Any], *args: object, detached: bool = True
) -> Any:
    """Handle of a new actor; returns before its constructor ran."""
    lifetime = {"lifetime": "detached"} if detached else {}
    return ray.remote(cls).options(name=name, namespace=namespace, **lifetime, **options).remote(*args)

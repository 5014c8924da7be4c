"""Servers that join and leave while requests run (devices lent to rollout and taken back).

Invariant: a server that is told to leave takes no request from then on, and when it sleeps it has none: those it had
are with the servers that stay. Clients must resume (`clients.resumable`), or what is cut off is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from verl_core.rollout.servers import Servers
from verl_core.weights.interface import WeightManifest

Tell = Callable[[Mapping[str, Any]], None]


def leave(servers: Servers, names: Collection[str], tell: Tell, level: int = 1) -> None:
    """The named servers hand over what they have and sleep. Repeating it costs nothing.

    The order matters: rejecting sends away who is parked or comes late; only then may the rest be cut off, or they
    would park where nobody wakes the server. When nobody stays, requests wait for the next `join`, up to
    rollout.pause_timeout_s.

    Args:
        servers: all of them.
        tell: gets the handles of those that stay (`set_servers` of the agent workers).
        level: of the sleep; see RolloutEngine.
    """
    leaving = servers.part(names)
    leaving.gate("reject")
    tell({name: handle for name, handle in servers.handles.items() if name not in names})
    leaving.sleep(level, abort=True)


def join(servers: Servers, names: Collection[str], tell: Tell, manifest: WeightManifest | None = None) -> None:
    """The named servers take requests again: weights first, then awake, then open, then known. Repeating it costs
    nothing.

    Args:
        servers: all that serve afterwards, the named ones included.
        tell: gets the handles of all servers.
        manifest: what was published last; None when they have it, or when it comes between devices.

    Raises:
        WeightError: refused; the servers stay as they were.
    """
    joining = servers.part(names)
    if manifest is not None:
        joining.update_weights(manifest)
    joining.wake()
    joining.gate("open")
    tell(servers.handles)

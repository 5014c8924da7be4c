"""The named, detached placement group of a run. Invariant: a run has one at most, whichever of its processes asks, and
one that can no longer be had is removed rather than waited for.

It outlives the process that made it, as the run's actors do: the next process finds it by its name and puts what it
starts beside what is there. The look-up goes by name alone, since the process may sit in any Ray namespace.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.deadline import Deadline
from verl_core.errors import ResourceError

Bundles = Sequence[Mapping[str, float]]
_GONE = "REMOVED"


def reserve(name: str, bundles: Bundles, one_node: bool, timeout_s: float) -> Any:
    """The run's placement group: the one that stands, if it has these bundles, else a new one.

    Args:
        bundles: Ray resources of each.
        one_node: all bundles on one node; else on as few as possible.

    Raises:
        ResourceError: not to be had within `timeout_s`; nothing of it is left behind.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group

    for key, row in _rows(name).items():
        if row["state"] == "CREATED" and [dict(row["bundles"][index]) for index in sorted(row["bundles"])] == [
            dict(bundle) for bundle in bundles
        ]:
            return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key)))
    release(name)  # of another shape, or lost with its node
    strategy = "STRICT_PACK" if one_node else "PACK"
    group = placement_group([dict(bundle) for bundle in bundles], strategy, name, lifetime="detached")
    if not group.wait(timeout_s):
        release(name)
        raise ResourceError(
            f"could not reserve {list(bundles)}{' on one node' if one_node else ''} within {timeout_s:g} s: "
            f"{ray.available_resources()} are free right now. Wait for another run to end, or ask for less"
        )
    return group


def release(name: str, timeout_s: float = 30.0) -> None:
    """Remove the group and wait until it is gone; Ray kills what still runs in it. Nothing when there is none.

    Raises:
        DeadlineExceeded: Ray did not remove it.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    deadline = Deadline(f"placement group {name} to be removed", timeout_s, lambda: str(_rows(name)))
    for key in _rows(name):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))
    while _rows(name):
        deadline.check()
        time.sleep(0.05)


def _rows(name: str) -> dict[str, Any]:
    """Ray's account of the groups of this name, by id; removed ones left out."""
    from ray.util import placement_group_table

    return {key: row for key, row in placement_group_table().items() if row["name"] == name and row["state"] != _GONE}

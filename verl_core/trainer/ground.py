"""Ground: what a run's actors stand on. Invariant: once it is cleared nothing of the run is left in the cluster: no
actor, no published weights in memory, no reserved devices."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import Any

from verl_core.deadline import Deadline
from verl_core.record.storage import open_storage
from verl_core.rollout import named_actor
from verl_core.trainer.placement import PARTS, Placement, group_name
from verl_core.trainer.reservation import release

_CLEAR_S = 60.0


@dataclass(frozen=True)
class Ground:
    """Attributes:
    namespace: of the run's actors.
    weights_folder: where rank 0 publishes, on its host or behind a URL.
    placement: the reserved devices.
    """

    namespace: str
    weights_folder: str
    placement: Placement

    def clear(self) -> None:
        """Kill whatever actor of the run is left, delete the published weights, give the devices back. Everything is
        tried, then the last error is raised.

        Raises:
            DeadlineExceeded: an actor, or the host of rank 0, did not answer.
        """
        with contextlib.ExitStack() as stack:
            for part in PARTS:
                stack.callback(release, group_name(self.namespace, part))
            stack.callback(self._delete_weights)
            stack.callback(named_actor.remove_all, self.namespace, _CLEAR_S)

    def _delete_weights(self) -> None:
        """By a task on the host of rank 0: rank 0 itself may be dead, and this process may be on another host."""
        import ray

        if "://" in self.weights_folder:
            root, _, name = self.weights_folder.rpartition("/")
            open_storage(root).remove(name)
            return
        deadline = Deadline(f"{self.weights_folder} to be deleted on the host of rank 0", _CLEAR_S)
        remove: Any = ray.remote(shutil.rmtree)
        options = {"max_retries": 0, **self.placement.host}
        done, _ = ray.wait([remove.options(**options).remote(self.weights_folder, True)], timeout=deadline.left)
        if not done:
            raise deadline.expired()

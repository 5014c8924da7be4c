"""RayTask: a Flyte task that is a RayJob on a cluster. Invariant: in this process Ray is started by verl_core alone.

The plugin's own task would call `ray.init` at its start, which on a laptop attaches to whatever cluster the host has on
record (a stale record hangs for minutes), in a namespace that is not the run's.
"""

from __future__ import annotations

from dataclasses import dataclass

from flytekit.core.context_manager import ExecutionParameters
from flytekit.extend import TaskPlugins
from flytekitplugins.ray import RayJobConfig
from flytekitplugins.ray.task import RayFunctionTask

from tasks.place import is_local
from verl_core.trainer.ray_session import RAY_LOCK


@dataclass
class RayTaskConfig(RayJobConfig):
    """RayJobConfig, for a task whose body starts Ray itself when it runs on a laptop."""


class RayTask(RayFunctionTask):
    """`type: ray` on a cluster: a RayJob with a RayCluster of its own. Locally an ordinary task."""

    def pre_execute(self, user_params: ExecutionParameters) -> ExecutionParameters:
        """On a cluster connect to the task's own Ray, as the plugin does; locally leave that to the body."""
        if is_local():
            return user_params
        with RAY_LOCK:
            return super().pre_execute(user_params)


TaskPlugins.register_pythontask_plugin(RayTaskConfig, RayTask)

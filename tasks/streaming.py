"""Streaming tasks: tasks that run beside their siblings under `pyflyte run` too.

flytekit's local scheduler runs one node after another, so a task that works until another one tells it to stop would
never end there. A streaming task starts in a thread when it is called and returns promises that are filled later;
whoever needs a value waits for it. On a cluster it is an ordinary task, a pod (StreamingTask) or a RayJob
(StreamingRayTask), and independent nodes run together.

Invariant: in local execution Ray is started by the calling thread, never by the task's own: Ray's processes are killed
by the kernel when the thread that started them ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flytekit.core.context_manager import FlyteContext, flyte_context_Var
from flytekit.core.promise import Promise, create_task_output
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.extend import TaskPlugins
from flytekit.models.literals import Literal

from tasks.ray_job import RayTask, RayTaskConfig
from tasks.siblings import Flight, Siblings
from verl_core.config import from_dict
from verl_core.trainer.ray_session import start_ray

SIBLINGS = Siblings()


class LazyPromise(Promise):
    """A promise of a local execution whose value is waited for when it is read.

    Args:
        var: name of the output.
        flight: the task that will give it.
        index: position among the task's outputs.
    """

    def __init__(self, var: str, flight: Flight, index: int) -> None:
        super().__init__(var=var, val=None)
        self._flight, self._index = flight, index

    @property
    def val(self) -> Literal:
        """The literal. Blocks; raises the task's error, or that of the sibling that failed first."""
        outputs = SIBLINGS.wait(self._flight)
        return (outputs if isinstance(outputs, Promise) else outputs[self._index]).val

    def deepcopy(self) -> Promise:
        """A filled copy: flytekit copies a promise before it follows an attribute path into it."""
        filled = Promise(var=self.var, val=self.val)
        filled._attr_path = list(self._attr_path)
        return filled


class Streaming(PythonFunctionTask):
    """What both kinds of streaming tasks do on a laptop. They take `config: dict`, and one output at least is used."""

    def local_execute(self, ctx: FlyteContext, **kwargs: Any) -> Any:
        """Start the task and return promises at once.

        Raises:
            TypeError: the task has no output, so nobody would wait for it.
        """
        names = list(self.interface.outputs)
        if not names:
            raise TypeError(f"{self.name}: a streaming task needs an output, else nobody waits for its end")
        config = from_dict(_native_dict(ctx, kwargs["config"]))
        start_ray(config)
        run = super().local_execute

        def body() -> Any:
            flyte_context_Var.set([ctx])  # a stack of its own: threads must not share flytekit's
            return run(ctx, **kwargs)

        flight = SIBLINGS.launch(self.name.rsplit(".", 1)[-1], body, config.ray.max_hours * 3600)
        return create_task_output([LazyPromise(n, flight, i) for i, n in enumerate(names)], self.python_interface)


def _native_dict(ctx: FlyteContext, value: Any) -> dict[str, Any]:
    native = TypeEngine.to_python_value(ctx, value.val, dict) if isinstance(value, Promise) else value
    return dict(native)


@dataclass
class StreamingConfig:
    """Of a task that is a pod on a cluster; there is nothing to set."""


@dataclass
class StreamingRayConfig(RayTaskConfig):
    """RayJobConfig, of a task that is a RayJob on a cluster."""


class StreamingTask(Streaming):
    """The task type of StreamingConfig."""


class StreamingRayTask(Streaming, RayTask):
    """The task type of StreamingRayConfig."""


TaskPlugins.register_pythontask_plugin(StreamingConfig, StreamingTask)
TaskPlugins.register_pythontask_plugin(StreamingRayConfig, StreamingRayTask)

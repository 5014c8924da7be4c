"""MetricSinks: all loggers of a run behind one `log`. Invariant: an unknown name is refused before one is opened."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError
from verl_core.metrics.console import ConsoleSink
from verl_core.metrics.jsonl import JsonlSink
from verl_core.metrics.sink import MetricSink, RunInfo
from verl_core.metrics.tensorboard import TensorboardSink
from verl_core.record.rundir import RunDir

SINKS: dict[str, Callable[[RunInfo], MetricSink]] = {
    "console": ConsoleSink,
    "jsonl": JsonlSink,
    "tensorboard": TensorboardSink,
}


def open_sinks(config: RunConfig, rundir: RunDir, total_steps: int, done_steps: int = 0) -> MetricSinks:
    """The loggers that trainer.logger names.

    Args:
        done_steps: steps that are done already; not 0 on a resume.

    Raises:
        ConfigError: as `MetricSinks`.
    """
    trainer = config.trainer
    name = f"{trainer.project_name}/{trainer.experiment_name}"
    return MetricSinks(trainer.logger, RunInfo(rundir, name, total_steps, done_steps))


class MetricSinks:
    """Args:
    names: values of trainer.logger.

    Raises:
        ConfigError: a name is unknown; says the nearest and all.
    """

    def __init__(self, names: Sequence[str], run: RunInfo) -> None:
        for name in names:
            if name not in SINKS:
                near = difflib.get_close_matches(name, SINKS, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"trainer.logger: {name!r} is unknown; {hint}Known loggers: {', '.join(SINKS)}.")
        self._sinks = [SINKS[name](run) for name in dict.fromkeys(names)]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the numbers of a step to every logger."""
        for sink in self._sinks:
            sink.log(step, metrics)

    def close(self) -> None:
        """Write out what the loggers hold. Idempotent."""
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

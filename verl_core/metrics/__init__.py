"""Where the numbers of a run go: loggers by name, progress, and reading them back. Invariant: a metric logged is
durable or shown in every chosen sink; importing this needs neither torch nor ray."""

from verl_core.metrics.sink import MetricSink
from verl_core.metrics.sinks import MetricSinks, open_sinks

__all__ = ["MetricSink", "MetricSinks", "open_sinks"]

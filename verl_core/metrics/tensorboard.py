"""TensorBoard event files under `tensorboard/` of the run directory. On an object store they are written here and
copied at every step, whole."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from verl_core.metrics.sink import RunInfo

FOLDER = "tensorboard"


class TensorboardSink:
    """After a resume, points of the abandoned steps are hidden (purge_step)."""

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        local = run.rundir.local
        self._run, self._copied = run, local is None
        self._folder = Path(tempfile.mkdtemp(prefix="verl-tensorboard-")) if local is None else local / FOLDER
        self._writer = SummaryWriter(str(self._folder), purge_step=run.done_steps + 1 if run.done_steps else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
        if self._copied:
            for file in self._folder.iterdir():
                self._run.rundir.publish_file(f"{FOLDER}/{file.name}", file)

    def close(self) -> None:
        self._writer.close()

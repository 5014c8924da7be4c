"""Runs side by side. Invariant: runs of a round begin together, after all of them are up, and a run that fails ends the
benchmark with the end of its log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import runs
from benchmarks.modes.conditions import CONDITIONS, Run
from benchmarks.modes.one import GO, MARKS, READY

_GB_OF_A_RUN = 3.2  # its processes together, pages that they share counted once
_START_LIMIT_S, _LOOK_S, _SAY_S = 1200.0, 1.0, 20.0


def room() -> int:
    """How many runs fit into the memory that is free now and onto the cores, at least one. Five on two cores were at a
    load of 27, and what trained really was later than what was simulated.
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_gb = int(fields["MemAvailable"].split()[0]) / 2**20
    return max(1, min(len(CONDITIONS.seeds), os.cpu_count() or 1, int(free_gb / _GB_OF_A_RUN)))


@dataclass
class Progress:
    """Says how far the whole is, from what each step is expected to take.

    Attributes:
        expected_s: of each round.
    """

    expected_s: list[float]

    def __post_init__(self) -> None:
        self._began, self._said = time.monotonic(), 0.0

    def say(self, round_number: int, share: float, text: str) -> None:
        """At most every twenty seconds."""
        now = time.monotonic()
        if now - self._said < _SAY_S and share < 1:
            return
        self._said = now
        done = sum(self.expected_s[:round_number]) + share * self.expected_s[round_number]
        left = (now - self._began) / max(done, 1e-9) * (sum(self.expected_s) - done) if done else sum(self.expected_s)
        print(f"bench-modes: {text}, {now - self._began:.0f} s, about {left:.0f} s left", flush=True)


def whole(run: Run, root: Path) -> bool:
    """Whether the run was done by an earlier call."""
    return (root / run.name / MARKS).exists()


def execute(round_runs: Sequence[Run], root: Path, progress: Progress, number: int) -> None:
    """Start the runs, let them begin together, wait for their ends. What an earlier call left of them is removed.

    Raises:
        RuntimeError: a run failed, or did not get ready in time.
    """
    (root / GO).unlink(missing_ok=True)
    processes = {run: _start(run, root) for run in round_runs}
    try:
        _until_ready(processes, root, progress, number)
        (root / GO).touch()
        while any(process.poll() is None for process in processes.values()):
            _refuse_failure(processes, root)
            done = [_steps_done(run, root) / run.total_steps(CONDITIONS) for run in round_runs]
            slowest = round_runs[done.index(min(done))]
            share = 0.2 + 0.8 * min(done)
            progress.say(number, min(share, 0.99), f"{len(processes)} runs, {slowest.name} at {100 * min(done):.0f}%")
            time.sleep(_LOOK_S)
        _refuse_failure(processes, root)
    finally:
        for process in processes.values():
            if process.poll() is None:
                runs.kill(process)


def _start(run: Run, root: Path) -> subprocess.Popen[bytes]:
    shutil.rmtree(root / run.name, ignore_errors=True)
    for left in (root / f"{run.name}.{READY}", _log(run, root)):
        left.unlink(missing_ok=True)
    asked = [run.mode, run.seed, run.rollout, run.total_steps(CONDITIONS), root]
    return runs.start([sys.executable, "-m", "benchmarks.modes.one", *map(str, asked)], _log(run, root))


def _until_ready(processes: dict[Run, subprocess.Popen[bytes]], root: Path, progress: Progress, number: int) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not all((root / f"{run.name}.{READY}").exists() for run in processes):
        _refuse_failure(processes, root)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the runs in {root} were not up within {_START_LIMIT_S:.0f} s")
        progress.say(number, 0.0, f"{len(processes)} runs start")
        time.sleep(_LOOK_S)


def _refuse_failure(processes: dict[Run, subprocess.Popen[bytes]], root: Path) -> None:
    for run, process in processes.items():
        if process.poll() not in (None, 0) or (process.poll() == 0 and not (root / run.name / MARKS).exists()):
            tail = _log(run, root).read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{run.name} ended early, with {process.poll()}:\n{tail}")


def _steps_done(run: Run, root: Path) -> int:
    return len(list((root / run.name / "steps").glob("*/record.json")))


def _log(run: Run, root: Path) -> Path:
    return root / f"{run.name}.log"

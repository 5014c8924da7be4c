"""Starting whole runs as a user would, each in a process group of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
LIMIT_S = 1200.0


def in_process(config: str, overrides: Sequence[str]) -> list[str]:
    """Command of a run without Flyte."""
    return [sys.executable, "-m", "verl_core.trainer.run", config, *overrides]


def by_flyte(config: str, overrides: Sequence[str]) -> list[str]:
    """Command of the same run as a Flyte graph."""
    pyflyte = str(Path(sys.executable).with_name("pyflyte"))
    return [
        pyflyte,
        "run",
        "workflows/train.py",
        "train",
        "--config",
        config,
        "--overrides",
        json.dumps(list(overrides)),
    ]


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a run; its output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(REPO), "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"}
    with log.open("ab") as file:
        return subprocess.Popen(
            command, cwd=REPO, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to everything the run started, Ray's own processes included."""
    for pid in descendants(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=30)


def descendants(pid: int) -> list[int]:
    """The process and everything below it, parents first."""
    found, frontier = [pid], [pid]
    while frontier:
        parent = frontier.pop()
        try:
            children = [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            children = []
        found += children
        frontier += children
    return found


def finish(process: subprocess.Popen[bytes], log: Path, limit_s: float = LIMIT_S) -> None:
    """Wait for a run to end well.

    Raises:
        RuntimeError: it failed or took too long; carries the end of its log.
    """
    try:
        code = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill(process)
        code = -1
    if code != 0:
        tail = log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the run of {log} ended with {code}:\n{tail}")


def summary_of(root: Path) -> dict[str, Any]:
    """summary.json of a run directory."""
    summary: dict[str, Any] = json.loads((root / "summary.json").read_text())
    return summary

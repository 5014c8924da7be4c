"""flytekit's stand-in for ray must not make two copies of ray's exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import flytekitplugins.ray
{first}
from ray.exceptions import RayError
import ray._private.worker
print(RayError is ray._private.worker.RayError)
"""


def printed(first: str, root: Path) -> str:
    command = [sys.executable, "-c", CODE.format(first=first)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=True).stdout.strip()


def test_importing_tasks_first_keeps_one_copy(repo_root: Path) -> None:
    assert printed("import tasks", repo_root) == "True"


def test_the_trap_is_still_there(repo_root: Path) -> None:
    assert printed("", repo_root) == "False"  # when this fails, flytekit has mended it and tasks/__init__.py can shrink

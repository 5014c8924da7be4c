"""The image's content and the package made from it, once per session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flyte.propeller import Package, load_package

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
IMAGE = "registry.invalid/verl-flyte:test"


@pytest.fixture(scope="session")
def image(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Dockerfile copies into the image's working directory."""
    folder = tmp_path_factory.mktemp("image")
    for name in ("workflows", "tasks", "verl_core", "configs"):
        shutil.copytree(repo_root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="session")
def package(image: Path) -> Package:
    """The packaged workflows."""
    command = [PYFLYTE, "--pkgs", "workflows", "package", "--image", IMAGE, "--output", "package.tgz", "--force"]
    done = subprocess.run(command, cwd=image, env=clean_env(image), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return load_package(image / "package.tgz")


def clean_env(root: Path) -> dict[str, str]:
    """This environment, with the code of `root` first."""
    return {**os.environ, "PYTHONPATH": str(root)}

"""`pyflyte run` as a user types it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.flyte.conftest import PYFLYTE, clean_env


def pyflyte_run(
    root: Path, *arguments: str, cwd: Path | None = None, limit_s: float = 240
) -> subprocess.CompletedProcess[str]:
    command = [PYFLYTE, "run", *arguments]
    # Without the checkout on PYTHONPATH: pyflyte finds it by itself.
    env = {**clean_env(root), "PYTHONPATH": ""}
    return subprocess.run(command, cwd=cwd or root, env=env, capture_output=True, text=True, timeout=limit_s)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.rollout.m=4", "actor_rollout_ref.rollout.n"),
        ("trainer.total_training_steps=soon", "trainer.total_training_steps"),
    ],
)
def test_a_bad_setting_ends_the_run_with_its_message(repo_root: Path, override: str, message: str) -> None:
    config = str(repo_root / "configs" / "scripted.yaml")
    done = pyflyte_run(
        repo_root, "workflows/train.py", "train", "--config", config, "--overrides", json.dumps([override])
    )
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).replace("│", " ").split())
    assert "ConfigError" in said
    assert "1 problem in the configuration" in said
    assert message in said


def test_help_explains_the_two_inputs(repo_root: Path, tmp_path: Path) -> None:
    """From another directory, too."""
    done = pyflyte_run(repo_root, str(repo_root / "workflows" / "train.py"), "train", "--help", cwd=tmp_path)
    said = " ".join(done.stdout.replace("│", " ").split())
    assert done.returncode == 0, done.stderr
    assert "a YAML file (or JSON) of settings" in said
    assert "a JSON list of key=value" in said

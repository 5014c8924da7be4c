"""The explanation a user sees, and what importing the configuration drags in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from verl_core.config import resolve, to_dict
from verl_core.config.explain import explain, main

QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml")


def test_the_explanation_is_the_configuration_with_an_origin_on_each_line() -> None:
    resolved = resolve(QUICKSTART, ["trainer.seed=5"])
    text = explain(resolved)
    assert yaml.safe_load(text) == to_dict(resolved.config)
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["train_size"].endswith("# configs/quickstart.yaml")
    assert lines["project_name"].endswith("# configs/base.yaml")
    assert sum(line.endswith("# override trainer.seed=5") for line in text.splitlines()) == 1
    assert lines["grad_clip"].endswith("# default")


def test_the_command_takes_overrides_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([QUICKSTART, "trainer.seed=5", "--overrides", '["trainer.nnodes=2"]']) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert (told["trainer"]["seed"], told["trainer"]["nnodes"]) == (5, 2)


def test_the_command_tells_problems_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([QUICKSTART, "trainer.sed=5"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "trainer.sed: unknown key; did you mean trainer.seed?" in captured.err


@pytest.mark.parametrize("module", ["verl_core.config", "verl_core.config.explain"])
def test_importing_the_configuration_loads_nothing_heavy(module: str) -> None:
    heavy = "{'torch', 'ray', 'vllm', 'transfer_queue', 'transformers', 'flytekit'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

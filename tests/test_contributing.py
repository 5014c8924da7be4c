"""The examples of CONTRIBUTING.md run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_examples_register_what_they_say() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    use = """
import torch
from verl_core.reward.registry import reward_for
from verl_core.config.schema import RewardConfig
from verl_core.rollout.agent_loop import agent_loop_for
from verl_core.trainer.registry import get_trainer_cls
rewards = torch.tensor([[0.0, 1.0], [float("nan"), 0.5]])
inputs = AdvantageInputs(rewards, torch.tensor([[True, True], [False, True]]), torch.tensor([0, 0]))
assert ADVANTAGES.get("my_estimator")(inputs).advantages.tolist() == [[1.0, 1.0], [0.0, 0.5]]
assert reward_for("my_data", RewardConfig())("my_data", "12", 34, {}) == 1.0
assert agent_loop_for("second_thought") is SecondThought
assert get_trainer_cls("my_mode") is MyTrainer
"""
    code = "\n".join([*blocks, use])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

"""One run, in a process of its own: `python -m benchmarks.modes.one MODE SEED ROLLOUT STEPS ROOT`.

It gets ready, waits until the file ROOT/go is there, so that runs which are measured side by side begin together and no
one's start falls into another's measurement, trains, and writes ROOT/<run>/marks.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

from benchmarks.modes.conditions import CONDITIONS, RECIPE, Conditions, Mode, Run, overrides
from benchmarks.modes.paced import Pace, PacedPolicy
from verl_core.config import RunConfig, resolve
from verl_core.engine.interface import PolicyEngine
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.run import ready

MARKS, READY, GO = "marks.json", "ready", "go"
_GO_WITHIN_S = 1200.0


def config_of(run: Run, conditions: Conditions, root: Path) -> RunConfig:
    """The run's configuration. All runs of a root start from one policy and one file of prompts."""
    return ready(resolve(RECIPE, overrides(run, conditions, root)).config)


def pace_of(run: Run, conditions: Conditions) -> Pace:
    """Training speed of the run's devices."""
    return Pace(conditions.train_tokens_per_s, run.trainers(conditions), conditions.forward_share)


def execute(run: Run, conditions: Conditions, root: Path, started: Callable[[], None]) -> dict[str, Any]:
    """Train; returns the marks.

    Args:
        started: called when everything is up; returns when training shall begin.
    """
    config = config_of(run, conditions, root)
    try:
        with open_trainer(config) as trainer:
            policy = PacedPolicy(trainer.session.policy, pace_of(run, conditions))
            trainer.session.policy = cast(PolicyEngine, policy)
            started()
            return _train(trainer, policy)
    finally:
        close_trainer(config)


def _train(trainer: PPOTrainer, policy: PacedPolicy) -> dict[str, Any]:
    """`PPOTrainer.fit`, with a mark after each step."""
    session = trainer.session
    began, cpu = time.monotonic(), os.times()
    marks = [_mark(trainer, policy, 0, began)]
    trainer.begin()
    for step in range(session.first_open_step(), session.total_steps + 1):
        trainer.step(step)
        marks.append(_mark(trainer, policy, step, began))
    trainer.end()
    spent = os.times()
    return {"marks": marks, "driver_cpu_s": spent.user + spent.system - cpu.user - cpu.system}


def _mark(trainer: PPOTrainer, policy: PacedPolicy, step: int, began: float) -> dict[str, Any]:
    usage = {name: asdict(account) for name, account in trainer.session.servers.usage().items()}
    return {
        "step": step,
        "load": os.getloadavg()[0],
        "wall_s": time.monotonic() - began,
        "paced_s": policy.paced_s,
        "real_s": policy.real_s,
        "late_s": policy.late_s,
        "usage": usage,
    }


def _wait_for_go(root: Path, run: Run) -> None:
    (root / f"{run.name}.{READY}").touch()
    deadline = time.monotonic() + _GO_WITHIN_S
    while not (root / GO).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{root / GO} did not come within {_GO_WITHIN_S:.0f} s")
        time.sleep(0.02)


def main(arguments: list[str]) -> None:
    """MODE SEED ROLLOUT STEPS ROOT"""
    mode, seed, rollout, steps, folder = arguments
    if mode not in get_args(Mode):
        raise ValueError(f"no mode {mode!r}; there are {', '.join(get_args(Mode))}")
    run, root = Run(cast(Mode, mode), int(seed), int(rollout), int(steps)), Path(folder)
    marks = execute(run, CONDITIONS, root, lambda: _wait_for_go(root, run))
    (root / run.name / MARKS).write_text(json.dumps(marks))


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a Flyte node adds to a stage, on this machine: the time of nodes whose stage is done already.

A finished run is walked again, node by node, through flytekit; each stage gives back what lies in the run directory,
so what is left is flytekit's own work, the literals, the attach and the check of the input.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable

from flytekit import dynamic

from benchmarks.goals import OUT
from tasks.literals import StageNote
from tasks.step_tasks import SHARED
from verl_core.config import resolve, to_dict
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.run import ready

ROOT = OUT / "nodes"
STEPS, REPEATS = 5, 5


@dynamic
def walk(config: dict, steps: int) -> StageNote:
    """The nodes of `steps` steps, as `workflows.session` chains them."""
    note = StageNote()
    for step in range(1, steps + 1):
        for stage in (SHARED.rollout, SHARED.reward, SHARED.advantage, SHARED.update):
            note = stage(config=config, step=step, after=note).note
    return note


def measure() -> dict[str, float]:
    """Milliseconds per node: the median over repeats, with the same stages called without Flyte beside it."""
    shutil.rmtree(ROOT, ignore_errors=True)
    settings = [f"trainer.default_local_dir={ROOT}", f"trainer.total_training_steps={STEPS}", "trainer.logger=[jsonl]"]
    config = ready(resolve("configs/scripted.yaml", settings).config)
    try:
        with open_trainer(config) as trainer:
            trainer.fit()
            with_flyte = [_seconds(lambda: walk(config=to_dict(config), steps=STEPS)) for _ in range(REPEATS)]
            bare = [_seconds(lambda: [_stages(trainer, step) for step in range(1, STEPS + 1)]) for _ in range(REPEATS)]
    finally:
        close_trainer(config)
    nodes = 4 * STEPS
    added = (statistics.median(with_flyte) - statistics.median(bare)) / nodes
    return {
        "flyte_node_ms": 1e3 * added,
        "flyte_node_ms_worst": 1e3 * max(with_flyte) / nodes,
        "stage_without_flyte_ms": 1e3 * statistics.median(bare) / nodes,
    }


def _stages(trainer: PPOTrainer, step: int) -> None:
    for stage in (trainer.rollout, trainer.reward, trainer.advantage, trainer.update):
        stage(step)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(measure())

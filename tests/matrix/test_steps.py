"""Every accepted cell of the matrix trains: the stages of two steps on trajectories of the scripted engine, in this
process.

A mode decides when trajectories are sampled, not what the advantage and the update do with them. So each cell takes two
steps on one set of trajectories, whose log-probs are those of the first step's weights: on-policy, then a step behind.
Whole runs of the modes are in tests/trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import VOCABULARY
from tests.matrix.cells import SESSIONS, Cell, every_cell
from tests.rollout.local import engine_handle
from tests.trainer.test_stages import Files
from verl_core.algorithms.kl_control import FixedKL
from verl_core.config import RunConfig
from verl_core.engine.local import LocalCritic, LocalPolicy
from verl_core.rollout.group_run import GroupRunner
from verl_core.rollout.pool import ServerPool
from verl_core.rollout.resumable import ResumableClient
from verl_core.rollout.scripted import ScriptedEngine
from verl_core.rollout.single_turn import SingleTurnAgent
from verl_core.trainer.stages.advantage import advantage
from verl_core.trajectory import Prompt, Reward, Trajectory

GROUPS = 3
EVERY = 211  # of the default tier


def fitted(config: RunConfig, folder: str) -> RunConfig:
    """The cell's configuration on the tiny model."""
    config.trainer.device, config.trainer.n_gpus_per_node = "cpu", 1
    config.data.train_batch_size, config.data.max_prompt_length, config.data.max_response_length = GROUPS, 8, 8
    config.actor_rollout_ref.model.path = folder
    config.actor_rollout_ref.actor.ppo_mini_batch_size = GROUPS
    config.actor_rollout_ref.actor.optim.lr = 1e-3
    return config


@pytest.fixture(scope="module")
def rolled(tiny_model: str) -> list[Trajectory]:
    """`SESSIONS` sampled sessions of each prompt and a greedy one."""
    config = fitted(Cell("remax", "vanilla", "disabled", "sync", None, "none").config()[0], tiny_model)
    engine = ScriptedEngine(config, tiny_model)

    async def main() -> list[Trajectory]:
        await engine.start()
        pool: ServerPool[Any] = ServerPool({"s": engine_handle(engine)})
        runner = GroupRunner(config, SingleTurnAgent(config), ResumableClient(pool, 20, 20), "test")
        groups = [await asyncio.wait_for(runner.run(prompt(place)), 60) for place in range(GROUPS)]
        await engine.shutdown()
        assert not any(group.tag.manifest.errors for group in groups)
        return [row for group in groups for row in group.trajectories]

    found = asyncio.run(main())
    assert len(found) == GROUPS * (SESSIONS + 1)
    return found


def prompt(place: int) -> Prompt:
    """Three ids."""
    ids = np.asarray([2 + place, 7, 11], dtype=np.int32) % VOCABULARY
    uid = f"{place:032x}"
    return Prompt(uid, uid, 0, place, place, 1, SESSIONS + 1, ids, "test", "")


def rewards_of(rows: Sequence[Trajectory]) -> list[Reward]:
    """1 for a response whose ids have an even sum; siblings differ."""
    found = []
    for row in rows:
        parity = float(row.response_ids.sum() % 2 == 0)
        found.append(Reward(row.key, parity, {"parity": parity, "length": len(row.response_ids) / 8}))
    return found


def two_steps(cell: Cell, rolled: list[Trajectory], folder: str, tmp_path: Path) -> list[dict[str, float]]:
    """Metrics of the two steps."""
    config = fitted(cell.config()[0], folder)
    rows = [row for row in rolled if cell.estimator == "remax" or row.session < SESSIONS]
    files = Files(rows, rewards_of(rows))
    policy = LocalPolicy(config, 2, str(tmp_path))
    critic = LocalCritic(config, 2) if config.needs_critic else None
    session = SimpleNamespace(
        config=config,
        files=files,
        policy=policy,
        critic=critic,
        training=lambda *_: nullcontext(),
        kl_control=lambda _: FixedKL(0.01),
    )
    found = []
    for step in (1, 2):
        advantage(session, step)  # type: ignore[arg-type]
        batch, metrics = files.saved
        if critic is not None:
            metrics = metrics | critic.update(batch, step)
        found.append(metrics | policy.update(batch, step))
    return found


def walk(cells: list[Cell], rolled: list[Trajectory], folder: str, tmp_path: Path) -> int:
    """How many cells were trained; every one with finite metrics."""
    trained, wrong = 0, []
    for cell in cells:
        if cell.config()[1]:
            continue
        trained += 1
        for step, metrics in enumerate(two_steps(cell, rolled, folder, tmp_path), 1):
            broken = {name: value for name, value in metrics.items() if not np.isfinite(value)}
            if broken or "actor/grad_norm" not in metrics:
                wrong.append((cell.name, step, broken))
    assert not wrong, wrong[:10]
    return trained


def one_mode() -> list[Cell]:
    """The cells that differ in what the stages do: those of sync, the critic as it follows from the estimator."""
    return [cell for cell in every_cell() if cell.mode == "sync" and cell.critic is None]


def test_some_cells_train_two_steps(rolled: list[Trajectory], tiny_model: str, tmp_path: Path) -> None:
    assert walk(one_mode()[::EVERY], rolled, tiny_model, tmp_path) > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_accepted_cell_trains_two_steps(rolled: list[Trajectory], tiny_model: str, tmp_path: Path) -> None:
    assert walk(one_mode(), rolled, tiny_model, tmp_path) > 3000

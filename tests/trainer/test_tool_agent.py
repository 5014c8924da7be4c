"""A whole run with tools: the agent in its worker, sessions in the files, metrics in the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from verl_core.config import resolve
from verl_core.metrics.jsonl import read_rows
from verl_core.record.rundir import RunDir
from verl_core.record.trajectories import read_trajectories
from verl_core.trainer.assets import data_files, model_folder, with_assets
from verl_core.trainer.open import close_trainer
from verl_core.trainer.run import train

SMALL = [
    "data.prepare.train_size=64",
    "data.prepare.val_size=8",
    "data.train_batch_size=4",
    "warm_start.steps=120",
    "warm_start.batch_size=32",
    "warm_start.tool_share=1.0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.name=scripted",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=2",
    "trainer.test_freq=2",
    "trainer.logger=[jsonl]",
    "trainer.init_timeout_s=240",
]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_sessions_of_several_turns_are_trained_on(tmp_path: Path, mode: str) -> None:
    """A policy that has just learned to open a call: most are malformed, and each is answered."""
    settings = [f"trainer.default_local_dir={tmp_path}", f"trainer.v1.trainer_mode={mode}", "trainer.steps_per_node=1"]
    made = resolve("configs/tool_agent.yaml", [*SMALL, *settings]).config
    config = with_assets(made, *data_files(made), model_folder(made))
    try:
        summary = train(config)
    finally:
        close_trainer(config)
    assert summary.accounting["lost"] == summary.accounting["trained_twice"] == 0
    run = RunDir(summary.run_dir)
    rows = [row for step in (1, 2) for row in read_trajectories(run, step)]
    assert len(rows) == 32
    assert any(row.num_turns > 1 for row in rows)
    for row in rows:
        account = row.extra["multi_turn"]
        assert (np.isnan(row.rollout_log_probs) == ~row.response_mask).all()
        assert row.response_mask[-1]
        assert account["turns"] == row.num_turns <= 3
        assert (~row.response_mask).any() == (row.num_turns > 1)
        assert len(row.response_ids) <= 72
    told = [row.metrics for row in read_rows(run) if row.step > 0]
    assert [metrics["tools/calls"] for metrics in told] == [
        sum(len(row.extra["multi_turn"]["calls"]) for row in read_trajectories(run, step)) for step in (1, 2)
    ]
    assert all(np.isfinite(value) for metrics in told for value in metrics.values())

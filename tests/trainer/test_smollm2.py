"""Two GRPO steps of a real 135M model on a reasoning-gym task: sampled by vLLM, trained by torch, both in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import resolve
from verl_core.models.smollm2 import export_smollm2
from verl_core.record.accounting import accounting
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics, read_step_record
from verl_core.trainer.run import ready, train

LARGEST_DIFFERENCE = 0.02  # nats, between vLLM's log-prob of a sampled token and the trainer's


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_grpo_steps(ray_cluster: None, tmp_path: Path) -> None:
    model = export_smollm2(tmp_path / "model")
    settings = [f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={tmp_path}"]
    summary = train(ready(resolve("configs/smollm2.yaml", settings).config))
    run = RunDir(summary.run_dir)
    for step in (1, 2):
        metrics = read_metrics(run, step)
        assert 0 < metrics["training/rollout_log_probs_diff_max"] < LARGEST_DIFFERENCE
        assert metrics["response_length/max"] <= 24
        record = read_step_record(run, step)
        assert (record.version_in, record.version_out) == (step - 1, step)
        assert record.counts["rows"] == 16
    assert accounting(run).trained == 8
    assert summary.val_after is not None

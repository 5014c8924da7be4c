"""A scripted run with a teacher: a crash between asking and training asks nobody again, and a lost policy is rebuilt
from stored batches without any teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from tests.trainer.conftest import MakeConfig
from verl_core.record.rundir import RunDir
from verl_core.trainer.open import leave_trainer, open_trainer
from verl_core.trainer.ray_session import namespace_of, run_root
from verl_core.trainer.run import train
from verl_core.trainer.step_files import StepFiles

LOSS = "distillation.distillation_loss"
LEGACY = "trainer.use_v1=false"

pytestmark = pytest.mark.usefixtures("ray_cluster")


def teaching(folder: str, *overrides: str) -> list[str]:
    entry = f"distillation.teacher_models.main.model_path={folder}"
    return ["distillation.enabled=true", entry, f"{LOSS}.use_task_rewards=false", *overrides]


@pytest.mark.slow
def test_nobody_is_asked_twice(
    make_config: MakeConfig, assets: tuple[Any, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_update = "actor_rollout_ref.actor.ppo_mini_batch_size=4"  # a second one meets weights that moved
    topk = [f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.topk=8", one_update]
    config = make_config("taught", *teaching(assets[2], *topk), LEGACY, "trainer.val_before_train=false")
    with open_trainer(config) as trainer:
        trainer.begin()
        session = trainer.session
        metrics = trainer.step(1).metrics
        assert metrics["actor/distillation_loss"] == pytest.approx(0.0, abs=2e-4)  # the teacher is the start policy
        assert session.files.metrics(1, ("advantage",))["distillation/reverse_kl"] == pytest.approx(0.0, abs=1e-4)
        assert "actor/pg_loss" not in metrics
        trainer.rollout(2)
        trainer.reward(2)
        trainer.advantage(2)
        stored = Path(run_root(config)) / "steps" / "000002"
        scores = (stored / "teacher.safetensors").read_bytes()
        batch = session.files.batch(2)
        assert batch.columns["teacher_topk_ids"].shape == (len(batch.response_ids), 8)
        (stored / "batch.safetensors").unlink()  # a crash before the batch was there
        trainer_state = session.policy.weights_sha256()
        ray.kill(ray.get_actor("teacher-main-0", namespace_of(config)))
    leave_trainer(config)
    with open_trainer(config) as trainer:
        session = trainer.session
        assert session.teachers is not None
        monkeypatch.setattr(type(session.teachers), "ask", lambda *_: pytest.fail("a teacher was asked again"))
        trainer.advantage(2)
        assert (stored / "teacher.safetensors").read_bytes() == scores
        for name, values in session.files.batch(2).columns.items():
            np.testing.assert_array_equal(values, batch.columns[name])
        trainer.update(2)
        after = session.policy.weights_sha256()
        assert after != trainer_state
        for engine in session.trained.values():
            engine.reset()
        session.restore(2)  # from stored batches
        assert session.policy.weights_sha256() == after


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_mode_learns_from_a_teacher_as_a_reward(
    make_config: MakeConfig, assets: tuple[Any, Any, str], mode: str
) -> None:
    reward = [f"{LOSS}.loss_mode=k1", f"{LOSS}.use_policy_gradient=true", f"trainer.v1.trainer_mode={mode}"]
    config = make_config(f"taught_{mode}", *teaching(assets[2], *reward), "trainer.total_training_steps=2")
    assert train(config).steps == 2
    files = StepFiles(RunDir(run_root(config)))
    for step in (1, 2):
        batch = files.batch(step)
        mask, columns = batch.response_mask, batch.columns
        assert mask.any()
        told = columns["teacher_log_probs"][mask] - columns["old_log_probs"][mask]
        np.testing.assert_allclose(columns["advantages"][mask], told, atol=1e-6)
        assert np.isfinite(told).all()
        assert step == 1 or told.any()  # the teacher is the start policy

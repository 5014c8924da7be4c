"""Whole runs with an adapter: stopped and taken up again, sent alone or merged, with the base as the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.conftest import MakeConfig, stop_in_step_4
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics
from verl_core.trainer.finish import Summary
from verl_core.trainer.run import train
from verl_core.weights.adapter import read_adapter

LORA = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.actor.optim.lr=5e-3",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
)
LEGACY = "trainer.use_v1=false"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def numbers(summary: Summary, name: str) -> list[float]:
    return [read_metrics(RunDir(summary.run_dir), step)[name] for step in range(1, 5)]


def test_an_adapter_run_is_one_however_it_is_cut_and_sent(make_config: MakeConfig) -> None:
    calm = train(make_config("calm", LEGACY, *LORA))
    gaps = numbers(calm, "training/rollout_probs_diff_max")
    assert max(gaps) < 1e-4, "servers sample from another policy than the one that is trained"
    distance = numbers(calm, "actor/kl_loss")
    assert 0 <= distance[0] < distance[-1], "the policy leaves its reference, which stays"
    checkpoint = Path(calm.run_dir, "checkpoints/000004")
    assert max(float(tensor.abs().max()) for name, tensor in read_adapter(checkpoint).items() if "lora_B" in name) > 0

    cut = make_config("cut", LEGACY, *LORA)
    stop_in_step_4(cut)  # behind the checkpoint of step 2, with step 3 stored
    again = train(cut)
    assert again.final_weights_sha256 == calm.final_weights_sha256
    assert numbers(again, "actor/kl_loss") == pytest.approx(distance, abs=1e-7)

    merged = train(make_config("merged", LEGACY, *LORA, "actor_rollout_ref.model.lora.merge=true"))
    assert merged.final_weights_sha256 == calm.final_weights_sha256

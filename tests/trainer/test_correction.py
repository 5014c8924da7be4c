"""Whole runs that correct while they train: bypass mode with REINFORCE, rows rejected by the geometric mean of their
ratios, weights per token. What is reported of a step follows from its checkpoint and its stored batch, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.conftest import MakeConfig
from verl_core.config import RunConfig
from verl_core.record.batch_file import read_batch
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics
from verl_core.trainer.ray_session import run_root
from verl_core.trainer.run import train

PRESET = "algorithm.rollout_correction.preset=bypass_pg_geo_rs_token_tis"
STEPS = 3
LOW, HIGH, CAP = math.log(0.999), math.log(1.001), 2.0  # of the preset

pytestmark = pytest.mark.usefixtures("ray_cluster")


def by_hand(config: RunConfig, step: int) -> tuple[float, float]:
    """(share of the tokens that is kept, norm of the gradient) of a step with one update, from the weights before it:
    -(1 / kept tokens) sum of min(r, 2) A log pi over the tokens of rows whose mean of -log r lies between the bounds.
    """
    run = RunDir(run_root(config))
    before = Path(run.root, f"checkpoints/{step - 1:06d}") if step > 1 else config.actor_rollout_ref.model.path
    model = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float32)
    batch, total, kept, every = read_batch(run, step), torch.zeros(()), 0, 0
    for place in range(len(batch)):
        row = batch.select([place])
        prompt, response = torch.from_numpy(row.prompt_ids).long(), torch.from_numpy(row.response_ids).long()
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        log_pi = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        log_r = log_pi.detach() - torch.from_numpy(row.columns["old_log_probs"])
        assert row.response_mask.all()
        every += len(response)
        if LOW <= -float(log_r.mean()) <= HIGH:
            kept += len(response)
            total = total - (log_r.exp().clamp(max=CAP) * torch.from_numpy(row.columns["advantages"]) * log_pi).sum()
    (total / max(kept, 1)).backward()
    squares = [float(weight.grad.square().sum()) for weight in model.parameters() if weight.grad is not None]
    return kept / every, math.sqrt(sum(squares))


def started(make_config: MakeConfig, name: str, *settings: str) -> RunConfig:
    """A run of three steps, done. At this rate the bounds of the preset let a part of the rows through."""
    small = ["actor_rollout_ref.actor.optim.lr=3e-5", f"trainer.total_training_steps={STEPS}", "trainer.save_freq=1"]
    config = make_config(name, PRESET, *small, *settings)
    assert train(config).steps == STEPS
    return config


def metrics_of(config: RunConfig, step: int) -> dict[str, float]:
    """Of the step; finite, and of a run in which nothing is computed but the update."""
    metrics = read_metrics(RunDir(run_root(config)), step)
    assert all(map(math.isfinite, metrics.values()))
    assert "timing_s/old_log_prob" not in metrics
    return metrics


def test_rows_of_the_version_before_are_weighed_and_rejected_as_they_are_by_hand(make_config: MakeConfig) -> None:
    behind = ["trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.actor.ppo_mini_batch_size=4"]
    config = started(make_config, "behind", *behind)
    shares = []
    for step in range(1, STEPS + 1):
        metrics, (share, norm) = metrics_of(config, step), by_hand(config, step)
        assert metrics["actor/updates"] == 1
        assert metrics.get("actor/rollout_kept_share", 1.0) == share
        assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert metrics["training/staleness/max"] == min(1, step - 1)
        assert norm > 0.01
        shares.append(share)
    assert shares[0] == 1.0  # on-policy
    assert any(0.0 < share < 1.0 for share in shares[1:])


@pytest.mark.slow
def test_in_sync_only_what_a_step_has_moved_itself_is_rejected(make_config: MakeConfig) -> None:
    """Two updates a step: the first is on-policy, the second as far away as the first went."""
    config = started(make_config, "on_policy")
    shares, norms = [], []
    for step in range(1, STEPS + 1):
        metrics, batch = metrics_of(config, step), read_batch(RunDir(run_root(config)), step)
        assert metrics["actor/updates"] + metrics["actor/empty_updates"] == 2
        first = batch.response_lengths[batch.group_index < 2].sum() / len(batch.response_ids)
        shares.append(metrics.get("actor/rollout_kept_share", 1.0))
        norms.append(metrics["actor/grad_norm"])
        assert shares[-1] >= first
    assert min(shares) < 1.0
    assert max(norms) > 0.01

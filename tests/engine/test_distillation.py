"""The distance as a term of the update: what it reads of the model, that splits change nothing, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.conftest import VOCABULARY, MakeBatch, MakeConfig
from verl_core.batch import TrainBatch
from verl_core.config import RunConfig
from verl_core.config.schema import DistillationLossConfig
from verl_core.engine.distillation_term import TEACHER, TOPK, TOPK_IDS, DistillationTerm
from verl_core.engine.local import LocalPolicy
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.objective import PolicyObjective

K = 3


def taught(batch: TrainBatch, seed: int = 1) -> TrainBatch:
    """With scores of a random teacher; NaN under every mask."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(len(batch.response_ids), VOCABULARY)).astype(np.float32)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-log_p, axis=1)[:, :K]
    outside = ~batch.response_mask
    own, top = log_p[np.arange(len(log_p)), batch.response_ids], np.take_along_axis(log_p, ids, axis=1)
    batch = batch.with_column(TEACHER, np.where(outside, np.nan, own).astype(np.float32))
    batch = batch.with_column(TOPK_IDS, np.where(outside[:, None], 0, ids).astype(np.float32))
    return batch.with_column(TOPK, np.where(outside[:, None], np.nan, top).astype(np.float32))


def learning(config: RunConfig, mode: str, rewards: bool) -> RunConfig:
    config.distillation.enabled = True
    loss = config.distillation.distillation_loss
    loss.loss_mode, loss.topk, loss.use_task_rewards = mode, K, rewards
    return config


def test_wide_columns_survive_select_and_padding(make_batch: MakeBatch) -> None:
    batch = taught(make_batch())
    part = batch.select([3, 0])
    assert part.columns[TOPK_IDS].shape == (len(part.response_ids), K)
    padded = part.padded(TOPK_IDS)
    assert padded.shape == (2, int(part.response_lengths.max()), K)
    np.testing.assert_array_equal(part.flat(padded), part.columns[TOPK_IDS])
    with pytest.raises(ValueError, match="column x: expected"):
        batch.with_column("x", np.zeros((2, K), dtype=np.float32))


def test_the_model_is_asked_for_the_teachers_candidates(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """What the term gets is log_softmax of the model's own full forward pass at those ids."""
    config = learning(make_config(), "forward_kl_topk", rewards=False)
    batch = taught(make_batch())
    policy = LocalPolicy(config, 4, str(tmp_path))
    model = policy._worker._model
    term = DistillationTerm(config.distillation.distillation_loss)
    micro = MicroBatch.build(batch, [0, 5, 7], torch.device("cpu"), trainable=True, columns=term.columns)
    with torch.no_grad():
        scored, _ = model(micro.input_ids, micro.positions, term.targets(micro), False)
        full = torch.log_softmax(model.lm(input_ids=micro.input_ids).logits.float(), dim=-1).flatten(0, 1)
    log_probs, candidates = term.split(micro, scored)
    assert candidates is not None
    for number, (row, at) in enumerate(micro.cells.nonzero().tolist()):
        expected = full[micro.positions[number]]
        assert float(log_probs[row, at]) == pytest.approx(float(expected[micro.targets[number]]), abs=1e-4)
        ids = micro.columns[TOPK_IDS][row, at].long()
        torch.testing.assert_close(candidates[row, at], expected[ids], atol=1e-4, rtol=0)
    policy.shutdown()


@pytest.mark.parametrize("mode", ["forward_kl_topk", "k3", "k1+"])
@pytest.mark.parametrize("rewards", [True, False])
def test_small_micro_batches_train_the_same_weights(
    make_config: MakeConfig,
    make_batch: MakeBatch,
    tmp_path: Path,
    mode: str,
    rewards: bool,
) -> None:
    batch, ends, told = taught(make_batch()), [], []
    for budget in (4096, 20):
        config = learning(make_config(ppo_max_token_len_per_gpu=budget), mode, rewards)
        policy = LocalPolicy(config, 4, str(tmp_path))
        told.append(policy.update(batch, 1))
        ends.append({name: value.detach().clone() for name, value in policy._worker._model.named_parameters()})
        policy.shutdown()
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], atol=2e-5, rtol=0)
    assert ("actor/pg_loss" in told[0]) == rewards
    assert told[0]["actor/distillation_loss"] == pytest.approx(told[1]["actor/distillation_loss"], abs=1e-5)


def test_the_term_goes_down_when_it_is_trained_on(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = taught(make_batch())
    policy = LocalPolicy(learning(make_config(), "forward_kl_topk", rewards=False), 9, str(tmp_path))
    losses = [policy.update(batch, step)["actor/distillation_loss"] for step in range(1, 7)]
    assert losses[-1] < 0.9 * losses[0]
    policy.shutdown()


def test_columns_that_an_update_needs() -> None:
    actor = RunConfig().actor_rollout_ref.actor
    alone = PolicyObjective(actor, distillation=DistillationTerm(DistillationLossConfig("k3", use_task_rewards=False)))
    assert alone.columns(single_update=True) == [TEACHER]
    both = PolicyObjective(actor, distillation=DistillationTerm(DistillationLossConfig("forward_kl_topk")))
    assert both.columns(single_update=True) == ["advantages", TEACHER, TOPK_IDS, TOPK]
    assert both.has_policy_loss
    assert not alone.has_policy_loss

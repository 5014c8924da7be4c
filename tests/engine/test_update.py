"""One global step against a literal loop: no padding, no micro-batches, the formulas written out, torch's plain
AdamW.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import MakeBatch, MakeConfig
from verl_core.algorithms.policy_losses import POLICY_LOSSES
from verl_core.batch import TrainBatch
from verl_core.config.schema import PolicyLossConfig, RunConfig
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalPolicy
from verl_core.errors import PolicyError

Weights = dict[str, torch.Tensor]


def weights_of(policy: LocalPolicy, folder: Path) -> Weights:
    folder.mkdir()
    policy.save(str(folder))
    return {name: tensor.detach() for name, tensor in load_model(str(folder)).named_parameters()}


def literal(config: RunConfig, batch: TrainBatch, mini_batches: list[list[int]]) -> tuple[Weights, dict[str, float]]:
    """Token-mean clipped loss + KL (k3) - entropy, one row at a time."""
    actor = config.actor_rollout_ref.actor
    model = load_model(config.actor_rollout_ref.model.path)
    optim = actor.optim
    adam = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=tuple(optim.betas), eps=optim.eps, weight_decay=optim.weight_decay
    )
    sums = {"pg_loss": 0.0, "ppo_kl": 0.0, "clipped": 0.0, "tokens": 0.0, "norm": 0.0, "kl": 0.0}
    for rows in mini_batches:
        tokens = sum(int(mask_of(batch, row).sum()) for row in rows)
        sums["tokens"] += tokens
        for row in rows:
            start, end = batch.response_offsets[row], batch.response_offsets[row + 1]
            prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
            ids = torch.from_numpy(np.concatenate([prompt, batch.response_ids[start:end]]).astype(np.int64))
            table = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
            for step in range(end - start):
                if not batch.response_mask[start + step]:
                    continue
                place = len(prompt) + step
                log_p = table[place - 1, ids[place]]
                advantage, old, ref = (
                    float(batch.columns[name][start + step])
                    for name in ("advantages", "old_log_probs", "ref_log_probs")
                )
                ratio = torch.exp(log_p - old)
                clipped = torch.clamp(ratio, 1 - actor.clip_low, 1 + actor.clip_high)
                loss = torch.maximum(-advantage * ratio, -advantage * clipped)
                if float((-advantage * clipped).detach()) > float((-advantage * ratio).detach()):
                    sums["clipped"] += 1
                if advantage < 0:
                    loss = torch.minimum(loss, torch.tensor(-advantage * actor.clip_ratio_c))
                sums["pg_loss"] += float(loss.detach()) / tokens / len(mini_batches)
                sums["ppo_kl"] += old - float(log_p.detach())
                total = loss
                if actor.use_kl_loss:
                    kl = torch.clamp(torch.exp(ref - log_p) - 1 - (ref - log_p), -10, 10)
                    sums["kl"] += float(kl.detach()) / tokens / len(mini_batches)
                    total = total + actor.kl_loss_coef * kl
                if actor.entropy_coeff:
                    total = total + actor.entropy_coeff * (table[place - 1].exp() * table[place - 1]).sum()
                (total / tokens).backward(retain_graph=True)
        norm = torch.sqrt(sum((p.grad.square().sum() for p in model.parameters()), torch.zeros(())))
        sums["norm"] += float(norm) / len(mini_batches)
        for parameter in model.parameters():
            parameter.grad *= min(1.0, actor.grad_clip / (float(norm) + 1e-6))
        adam.step()
        adam.zero_grad()
    return {name: tensor.detach() for name, tensor in model.named_parameters()}, sums


def mask_of(batch: TrainBatch, row: int) -> Any:
    return batch.response_mask[batch.response_offsets[row] : batch.response_offsets[row + 1]]


def assert_same(one: Weights, other: Weights, tolerance: float = 2e-5) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")


TWO = [list(range(6)), list(range(6, 12))]  # groups of three rows, two groups each


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_kl_loss": True, "kl_loss_coef": 0.5, "entropy_coeff": 0.1}, {"ppo_epochs": 2, "clip_ratio_high": 0.5}],
)
def test_update_equals_the_literal_loop(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config, batch = make_config(**settings), make_batch()
    config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 40
    policy = LocalPolicy(config, 5, str(tmp_path))
    metrics = policy.update(batch, 1)
    expected, sums = literal(config, batch, TWO * config.actor_rollout_ref.actor.ppo_epochs)
    assert_same(weights_of(policy, tmp_path / "saved"), expected)
    assert metrics["actor/pg_loss"] == pytest.approx(sums["pg_loss"], rel=1e-3, abs=1e-5)
    assert metrics["actor/ppo_kl"] == pytest.approx(sums["ppo_kl"] / sums["tokens"], rel=1e-3)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(sums["clipped"] / sums["tokens"])
    assert metrics["actor/grad_norm"] == pytest.approx(sums["norm"], rel=1e-3)
    assert metrics["actor/updates"] == 2 * config.actor_rollout_ref.actor.ppo_epochs
    if config.actor_rollout_ref.actor.use_kl_loss:
        assert metrics["actor/kl_loss"] == pytest.approx(sums["kl"], rel=1e-3)
    assert policy.steps_done() == 1


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_any_budget_gives_the_same_step(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, mode: str
) -> None:
    batch, results = make_batch(), []
    for budget in (10_000, 30, 1):
        config = make_config(
            loss_agg_mode=mode, ppo_max_token_len_per_gpu=budget, use_kl_loss=True, entropy_coeff=0.01, kl_loss_coef=0.1
        )
        policy = LocalPolicy(config, 5, str(tmp_path))
        results.append((policy.update(batch, 1), weights_of(policy, tmp_path / str(budget))))
    for metrics, weights in results[1:]:
        assert metrics == pytest.approx(results[0][0], rel=1e-4, abs=1e-6)
        assert_same(weights, results[0][1])


@pytest.mark.parametrize("loss", POLICY_LOSSES.names())
def test_any_budget_gives_the_same_step_with_every_loss(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, loss: str
) -> None:
    # Shares and bounds that mark several tokens of this small batch.
    own = PolicyLossConfig(loss, clip_cov_ratio=0.1, clip_cov_lb=-1.0, kl_cov_ratio=0.2, dro_beta=0.5)
    batch, results = make_batch(), []
    for budget in (10_000, 1):
        config = make_config(policy_loss=own, ppo_max_token_len_per_gpu=budget, ppo_epochs=2)
        policy = LocalPolicy(config, 5, str(tmp_path))
        results.append((policy.update(batch, 1), weights_of(policy, tmp_path / str(budget))))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-4, abs=1e-6)
    assert_same(results[1][1], results[0][1])
    assert results[0][0]["actor/grad_norm"] > 0
    if loss in ("clip_cov", "kl_cov"):
        assert results[0][0]["actor/pg_markfrac"] > 0


def off_policy(policy: LocalPolicy, batch: TrainBatch) -> tuple[TrainBatch, Any]:
    """The batch with rollout log-probs near the policy's own, and the log-ratio to them."""
    own = policy.old_log_probs(batch).log_probs
    noise = np.random.default_rng(3).normal(scale=0.3, size=len(own)).astype(np.float32)
    return batch.with_column("old_log_probs", own - noise), noise


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_bypass_mode_rejects_while_training_as_if_the_tokens_had_never_been_there(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, mode: str
) -> None:
    # One update per step, so that the current policy is known beforehand: reject by hand, then train without rejection.
    settings = {"loss_agg_mode": mode, "ppo_mini_batch_size": 4, "use_kl_loss": True, "kl_loss_coef": 0.1}
    results = []
    for by_hand, budget in ((True, 10_000), (False, 10_000), (False, 1)):
        config = make_config(ppo_max_token_len_per_gpu=budget, **settings)
        policy = LocalPolicy(config, 5, str(tmp_path))
        batch, noise = off_policy(policy, make_batch())
        if by_hand:
            batch.response_mask = batch.response_mask & (np.abs(noise) <= np.log(1.3))
        else:
            correction = config.algorithm.rollout_correction
            correction.bypass_mode, correction.rollout_rs, correction.rollout_rs_threshold = True, "token_k1", 1.3
            policy = LocalPolicy(config, 5, str(tmp_path))
        results.append((policy.update(batch, 1), weights_of(policy, tmp_path / f"{by_hand}{budget}")))
    (expected, weights), *others = results
    for metrics, got in others:
        assert 0.3 < metrics.pop("actor/rollout_kept_share") < 0.9
        assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert_same(got, weights)


def test_bypass_mode_with_reinforce_weighs_the_plain_gradient(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    results = []
    for by_hand in (True, False):
        config = make_config(ppo_mini_batch_size=4, policy_loss=PolicyLossConfig("gpg" if by_hand else "vanilla"))
        correction = config.algorithm.rollout_correction
        correction.rollout_is, correction.rollout_is_threshold = "token", 1.2
        if not by_hand:
            correction.bypass_mode, correction.loss_type = True, "reinforce"
        policy = LocalPolicy(config, 5, str(tmp_path))
        batch, noise = off_policy(policy, make_batch())
        if by_hand:
            batch = batch.with_column("rollout_is_weights", np.minimum(np.exp(noise), 1.2))
        results.append((policy.update(batch, 1), weights_of(policy, tmp_path / str(by_hand))))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-3, abs=1e-5)
    assert_same(results[1][1], results[0][1])


def test_a_mini_batch_that_is_rejected_as_a_whole_moves_nothing(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    config = make_config()
    correction = config.algorithm.rollout_correction
    correction.bypass_mode, correction.rollout_rs, correction.rollout_rs_threshold = True, "seq_max_k2", 1e-9
    policy = LocalPolicy(config, 5, str(tmp_path))
    batch, _ = off_policy(policy, make_batch())
    before = policy.weights_sha256()
    metrics = policy.update(batch, 1)
    assert policy.weights_sha256() == before
    assert metrics["actor/empty_updates"] == 2
    assert metrics["actor/updates"] == metrics["actor/rollout_kept_share"] == 0


def test_weights_that_are_configured_must_be_there(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    config = make_config()
    config.algorithm.rollout_correction.rollout_is = "token"
    with pytest.raises(ValueError, match=r"lacks the columns \['rollout_is_weights'\]"):
        LocalPolicy(config, 5, str(tmp_path)).update(make_batch(), 1)


def test_gradient_checkpointing_changes_nothing_but_memory(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch()
    digests = []
    for on in (False, True):
        policy = LocalPolicy(make_config(enable_gradient_checkpointing=on), 5, str(tmp_path))
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        policy._worker._model.layers()[0].mlp.register_forward_pre_hook(count)
        policy.update(batch, 1)
        assert calls == (4 if on else 2)  # two mini-batches; each forward once more when recomputed
        digests.append(policy.weights_sha256())
    assert digests[0] == digests[1]


def test_rejected_rows_and_what_lies_under_masks_play_no_part(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch()
    mask = batch.response_mask.copy()
    mask[batch.response_offsets[4] : batch.response_offsets[5]] = False
    batch.response_mask = mask
    other = batch.select(range(len(batch)))
    other.response_ids = np.where(batch.row_index == 4, 7, batch.response_ids).astype(np.int32)
    other.columns = {name: np.where(mask, values, 1e30).astype(np.float32) for name, values in batch.columns.items()}
    digests = set()
    for each in (batch, other):
        policy = LocalPolicy(make_config(use_kl_loss=True), 5, str(tmp_path))
        assert all(np.isfinite(list(policy.update(each, 1).values())))
        digests.add(policy.weights_sha256())
    assert len(digests) == 1


def test_with_one_update_per_step_old_log_probs_may_be_left_out(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch()
    results = []
    for given in (True, False):
        policy = LocalPolicy(make_config(ppo_mini_batch_size=4), 5, str(tmp_path))
        columns = {"advantages": batch.columns["advantages"]}
        if given:
            columns["old_log_probs"] = policy.old_log_probs(batch).log_probs
        batch.columns = columns
        metrics = policy.update(batch, 1)
        assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5)
        results.append(weights_of(policy, tmp_path / str(given)))
    assert_same(results[0], results[1])
    with pytest.raises(ValueError, match="lacks the columns \\['old_log_probs'\\]"):
        LocalPolicy(make_config(ppo_mini_batch_size=2), 5, str(tmp_path)).update(batch, 1)


@pytest.mark.parametrize("column", ["advantages", "old_log_probs"])
def test_a_number_that_is_not_finite_stops_the_step_and_names_the_row(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path, column: str
) -> None:
    batch = make_batch(tools=False)
    batch.columns[column][batch.response_offsets[1]] = np.nan
    policy = LocalPolicy(make_config(ppo_max_token_len_per_gpu=1), 5, str(tmp_path))
    before = policy.weights_sha256()
    with pytest.raises(PolicyError, match=f"step 1: the loss is not finite.*rows {batch.keys[1]}\\. "):
        policy.update(batch, 1)
    assert policy.weights_sha256() == before
    assert policy.steps_done() == 0
    policy.update(make_batch(), 1)  # nothing had moved, so the step may be repeated


def test_a_step_that_broke_half_way_must_be_reloaded(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch(tools=False)
    policy = LocalPolicy(make_config(), 5, str(tmp_path))
    (tmp_path / "start").mkdir()
    policy.save(str(tmp_path / "start"))
    start = policy.weights_sha256()
    batch.columns["advantages"][-1] = np.inf  # in the second mini-batch
    with pytest.raises(PolicyError, match="not finite"):
        policy.update(batch, 1)
    assert policy.weights_sha256() != start
    for call in (
        lambda: policy.update(make_batch(), 1),
        lambda: policy.publish(1),
        lambda: policy.old_log_probs(batch),
    ):
        with pytest.raises(PolicyError, match="Load a checkpoint"):
            call()
    policy.load(str(tmp_path / "start"))
    assert policy.weights_sha256() == start
    policy.update(make_batch(), 1)


def test_steps_come_one_after_another(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    policy = LocalPolicy(make_config(), 5, str(tmp_path))
    with pytest.raises(ValueError, match=r"update of step 2 .* after step 0"):
        policy.update(make_batch(), 2)


def test_a_mini_batch_without_a_trainable_token_takes_no_optimizer_step(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch()
    policy = LocalPolicy(make_config(optim_weight_decay=0.5), 5, str(tmp_path))
    batch.response_mask = np.where(batch.row_index < 6, False, batch.response_mask)
    metrics = policy.update(batch, 1)
    assert (metrics["actor/updates"], metrics["actor/empty_updates"]) == (1, 1)
    expected, _ = literal(make_config(optim_weight_decay=0.5), batch, [TWO[1]])
    assert_same(weights_of(policy, tmp_path / "saved"), expected)


def test_shuffled_mini_batches_follow_seed_step_and_epoch(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    batch = make_batch(groups=8)
    digests = []
    for seed in (1, 1, 2):
        config = make_config(shuffle=True)
        config.trainer.seed = seed
        policy = LocalPolicy(config, 5, str(tmp_path))
        policy.update(batch, 1)
        digests.append(policy.weights_sha256())
    assert digests[0] == digests[1] != digests[2]


def test_the_rate_follows_the_schedule_over_the_run(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    config = make_config(optim_lr_scheduler_type="cosine", optim_lr=1e-3)
    policy = LocalPolicy(config, 2, str(tmp_path))  # 2 steps x 2 mini-batches: horizon 4
    rates = [policy.update(make_batch(), step)["actor/lr"] for step in (1, 2)]
    # Last of each step: after 1 and 3 optimizer steps of 4.
    assert rates == pytest.approx([1e-3 * 0.5 * (1 + np.cos(np.pi / 4)), 1e-3 * 0.5 * (1 + np.cos(3 * np.pi / 4))])

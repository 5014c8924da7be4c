"""Log-probs and entropies against one plain forward pass per row, without padding, over the whole vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.conftest import MakeBatch, MakeConfig
from verl_core.batch import TrainBatch
from verl_core.engine.head import token_log_probs
from verl_core.engine.loading import load_model
from verl_core.engine.local import LocalPolicy
from verl_core.engine.micro_batch import MicroBatch
from verl_core.engine.model import PolicyModel, check_head
from verl_core.errors import ModelError


@torch.no_grad()
def plain(folder: str, batch: TrainBatch, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Row by row: full logits, log_softmax, look-up."""
    model = load_model(folder)
    log_probs, entropies = [], []
    for row in range(len(batch)):
        prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
        response = batch.response_ids[batch.response_offsets[row] : batch.response_offsets[row + 1]]
        ids = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
        table = torch.log_softmax(model(ids[None]).logits[0] / temperature, dim=-1)
        for place in range(len(prompt), len(ids)):
            log_probs.append(table[place - 1, ids[place]].item())
            entropies.append(-(table[place - 1].exp() * table[place - 1]).sum().item())
    return np.asarray(log_probs, dtype=np.float32), np.asarray(entropies, dtype=np.float32)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_old_log_probs_and_entropy(
    make_config: MakeConfig, make_batch: MakeBatch, tiny_model: str, tmp_path: Path, temperature: float
) -> None:
    config, batch = make_config(temperature=temperature, use_kl_loss=True), make_batch()
    policy = LocalPolicy(config, 1, str(tmp_path))
    expected = plain(tiny_model, batch, temperature)
    scored = policy.old_log_probs(batch)
    np.testing.assert_allclose(scored.log_probs, expected[0], atol=1e-4)
    assert scored.entropy is not None
    np.testing.assert_allclose(scored.entropy, expected[1], atol=1e-4)
    # The reference is the same model until the first update, and stays it afterwards.
    np.testing.assert_allclose(policy.ref_log_probs(batch).log_probs, scored.log_probs, atol=2e-6)
    policy.update(batch, 1)
    np.testing.assert_allclose(policy.ref_log_probs(batch).log_probs, scored.log_probs, atol=2e-6)
    assert np.abs(policy.old_log_probs(batch).log_probs - scored.log_probs).max() > 1e-3


@pytest.mark.parametrize("budget", [1, 16384])
def test_squared_probabilities_come_where_the_estimator_reads_them(
    make_config: MakeConfig, make_batch: MakeBatch, tiny_model: str, tmp_path: Path, budget: int
) -> None:
    config, batch = make_config(), make_batch()
    plain_scores = LocalPolicy(config, 1, str(tmp_path)).old_log_probs(batch)
    assert plain_scores.squares is None
    config.algorithm.adv_estimator = "optimal_token_baseline"
    config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu = budget
    scored = LocalPolicy(config, 1, str(tmp_path)).old_log_probs(batch)
    np.testing.assert_allclose(scored.log_probs, plain_scores.log_probs, atol=1e-4)
    np.testing.assert_allclose(scored.entropy, plain_scores.entropy, atol=1e-4)
    model, place = load_model(tiny_model), 0
    for row in range(len(batch)):
        part = batch.select([row])
        ids = torch.from_numpy(np.concatenate([part.prompt_ids, part.response_ids]).astype(np.int64))
        temperature = config.actor_rollout_ref.rollout.temperature
        chances = torch.softmax(model(ids[None]).logits[0] / temperature, dim=-1)[len(part.prompt_ids) - 1 : -1]
        expected = chances.square().sum(-1).detach().numpy()
        assert scored.squares is not None
        np.testing.assert_allclose(scored.squares[place : place + len(expected)], expected, atol=1e-5)
        place += len(expected)


def test_the_budget_does_not_change_the_numbers(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    config, batch = make_config(), make_batch()
    whole = LocalPolicy(config, 1, str(tmp_path)).old_log_probs(batch)
    config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu = 1  # every row alone
    alone = LocalPolicy(config, 1, str(tmp_path)).old_log_probs(batch)
    np.testing.assert_allclose(whole.log_probs, alone.log_probs, atol=1e-4)


def test_without_a_reference_asking_for_it_is_an_error(
    make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no reference"):
        LocalPolicy(make_config(), 1, str(tmp_path)).ref_log_probs(make_batch())


@pytest.mark.parametrize("with_entropy", [True, False])
def test_logits_in_pieces_give_the_same_values_and_gradients(with_entropy: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(8, 5)
    targets = torch.randint(5, (13,), generator=generator)
    results = []
    for at_once in (10_000, 20):  # 20 logits = 4 rows at a time
        hidden = torch.randn(13, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        head.zero_grad()
        log_probs, entropy = token_log_probs(hidden, head, targets, 5, 0.8, with_entropy, at_once)
        assert len(entropy) == (13 if with_entropy else 0)
        (log_probs.sum() + 0.5 * entropy.sum()).backward()
        assert hidden.grad is not None
        assert head.weight.grad is not None
        results.append((log_probs.detach(), hidden.grad, head.weight.grad.clone()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_trainable_cells_only_and_the_way_back_to_padded(make_batch: MakeBatch) -> None:
    batch = make_batch()
    rows = [5, 0, 7]
    micro = MicroBatch.build(batch, rows, torch.device("cpu"), trainable=True, columns=["advantages"])
    part = batch.select(rows)
    assert int(micro.mask.sum()) == int(part.response_mask.sum())
    torch.testing.assert_close(micro.mask, part.padded_mask())
    assert micro.targets.tolist() == part.response_ids[part.response_mask].tolist()
    back = micro.padded(micro.targets.float())
    expected = torch.where(part.padded_mask(), part.padded(part.response_ids.astype(np.float32)), 0.0)
    torch.testing.assert_close(back, expected)


def test_an_empty_prompt_is_named(make_batch: MakeBatch) -> None:
    batch = make_batch()
    batch.prompt_offsets = np.concatenate([[0], batch.prompt_offsets[:1], batch.prompt_offsets[2:]])
    with pytest.raises(ValueError, match=batch.keys[0]):
        MicroBatch.build(batch, [0, 1], torch.device("cpu"))


def test_a_model_that_changes_logits_after_its_head_is_refused(tiny_model: str) -> None:
    lm = load_model(tiny_model)
    original = lm.forward

    def scaled(*arguments: object, **options: object) -> object:
        out = original(*arguments, **options)
        out.logits = out.logits * 2
        return out

    lm.forward = scaled
    with pytest.raises(ModelError, match="changes logits after the head"):
        check_head(PolicyModel(lm, 1.0))


def test_bfloat16_computes_low_and_keeps_float32_parameters(tiny_model: str, make_batch: MakeBatch) -> None:
    model = PolicyModel(load_model(tiny_model), 1.0, torch.bfloat16)
    check_head(model)
    micro = MicroBatch.build(make_batch(), [0, 1, 2], torch.device("cpu"))
    low, _ = model(micro.input_ids, micro.positions, micro.targets)
    model.compute_dtype = torch.float32
    high, _ = model(micro.input_ids, micro.positions, micro.targets)
    assert low.dtype == torch.float32
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 0 < float((low - high).detach().abs().max()) < 1.0

"""Scores are those of transformers' own forward pass, whatever they are batched with; training on pairs is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from verl_core.config.schema import RewardModelConfig, RewardTrainingConfig
from verl_core.data.preferences import Preference
from verl_core.engine.preference_trainer import PreferenceTrainer
from verl_core.engine.ranks import Ranks
from verl_core.engine.reward_network import RewardNetwork, new_reward_network, padded_rows, reward_network
from verl_core.engine.reward_worker import RewardModelWorker
from verl_core.errors import ModelError, PolicyError
from verl_core.trajectory import Int32

CPU = torch.device("cpu")
SETTINGS = RewardTrainingConfig(enable=True, lr=1e-3, steps=20, batch_size=8)


@pytest.fixture(scope="module")
def scorer_folder(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model with a head that is not 0, in transformers' form."""
    model = new_reward_network(tiny_model, torch.float32, pad_id=0)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.lm.score.weight)
    folder = str(tmp_path_factory.mktemp("scorer"))
    model.write(folder, {name.removeprefix("lm."): part.detach() for name, part in model.named_parameters()})
    return folder


def some_rows(count: int, seed: int = 0) -> list[Int32]:
    random = np.random.default_rng(seed)
    return [random.integers(1, 48, int(random.integers(1, 20))).astype(np.int32) for _ in range(count)]


@torch.no_grad()
def own_scores(folder: str, rows: list[Int32]) -> list[float]:
    """Each row alone through transformers, which then has no padding to guess."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    return [float(model(input_ids=torch.from_numpy(row.astype(np.int64))[None]).logits[0, 0]) for row in rows]


def test_scores_are_transformers_own_however_rows_are_batched(scorer_folder: str) -> None:
    rows = some_rows(24)
    rows[3][-1] = rows[7][-1] = 1  # the end token
    expected = own_scores(scorer_folder, rows)
    worker = RewardModelWorker(RewardModelConfig(model_path=scorer_folder), "cpu", False, 1, "")
    assert worker.score(rows) == pytest.approx(expected, abs=1e-4)
    assert [score for row in rows for score in worker.score([row])] == pytest.approx(expected, abs=1e-4)


def test_a_row_that_ends_with_the_pad_token_is_read_at_its_own_end(scorer_folder: str) -> None:
    """transformers would look for the last token that is not the pad: one place too early."""
    row = np.asarray([5, 6, 7, 0], np.int32)
    model = reward_network(scorer_folder, torch.float32)
    lm = model.lm
    lm.config.pad_token_id = None
    with torch.no_grad():
        at_the_end = float(lm(input_ids=torch.tensor([[5, 6, 7, 0]])).logits[0, 0])
        ids, lengths = padded_rows([row, np.arange(1, 9, dtype=np.int32)], 0, CPU)
        assert float(model(ids, lengths)[0]) == pytest.approx(at_the_end, abs=1e-4)


def test_an_encoder_answers_by_its_own_pass(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=48,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=1,
        max_position_embeddings=32,
    )
    BertForSequenceClassification(shape).save_pretrained(tmp_path)
    rows = some_rows(6)
    model = reward_network(str(tmp_path), torch.float32)
    with torch.no_grad():
        found = model(*padded_rows(rows, model.pad_id, CPU)).tolist()
    assert found == pytest.approx(own_scores(str(tmp_path), rows), abs=1e-4)
    assert (model.vocabulary, model.max_positions) == (48, 32)


def test_two_labels_are_no_reward_model(tmp_path: Path) -> None:
    shape = BertConfig(vocab_size=48, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_labels=2)
    BertForSequenceClassification(shape).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="classifier with 2 labels; a reward model has one"):
        reward_network(str(tmp_path), torch.float32)


def test_a_worker_that_shares_sleeps_until_it_is_woken(scorer_folder: str) -> None:
    worker = RewardModelWorker(RewardModelConfig(model_path=scorer_folder), "cpu", True, 1, "")
    states = [worker.facts().awake]
    worker.wake()
    states.append(worker.facts().awake)
    worker.sleep()
    states.append(worker.facts().awake)
    assert states == [False, True, False]
    own = RewardModelWorker(RewardModelConfig(model_path=scorer_folder), "cpu", False, 1, "")
    assert own.facts().awake


def some_pairs(count: int, seed: int = 3) -> list[Preference]:
    rows = some_rows(2 * count, seed)
    return [Preference(rows[place], rows[count + place], margin=0.1 * (place % 3)) for place in range(count)]


def trainer(folder: str, **changed: int | float) -> PreferenceTrainer:
    model = new_reward_network(folder, torch.float32, pad_id=0)
    return PreferenceTrainer(model, Ranks.alone(CPU), replace(SETTINGS, **changed))


def gradients(model: RewardNetwork) -> dict[str, torch.Tensor]:
    return {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


def test_the_loss_of_a_step_is_the_literal_one(scorer_folder: str) -> None:
    pairs = some_pairs(8)
    better, worse = (
        own_scores(scorer_folder, [getattr(pair, side) for pair in pairs]) for side in ("chosen", "rejected")
    )
    lost = [float(np.log1p(np.exp(-(b - w - pair.margin)))) for b, w, pair in zip(better, worse, pairs, strict=True)]
    found = trainer(scorer_folder).judge(pairs)
    assert found.loss == pytest.approx(np.mean(lost), abs=1e-4)
    assert found.accuracy == pytest.approx(np.mean([b > w for b, w in zip(better, worse, strict=True)]))
    assert found.distance == pytest.approx(np.mean(np.subtract(better, worse)), abs=1e-4)


def test_micro_batches_change_nothing(scorer_folder: str) -> None:
    """The budget of one pair at a time, and of all at once."""
    pairs, found = some_pairs(8), []
    for budget in (2 * 20, 16384):
        one = trainer(scorer_folder, max_token_len_per_gpu=budget)
        one._run(pairs, train=True)
        found.append(gradients(one.model))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=1e-5, rtol=1e-4)


def test_a_rank_without_pairs_adds_nothing(scorer_folder: str) -> None:
    """Its filler takes part in the pass, and neither in the loss nor in the gradient."""
    one = trainer(scorer_folder)
    chosen, rejected, margin, mask = one._scored(some_pairs(1), [])
    assert (len(chosen), len(rejected), margin.tolist(), mask.tolist()) == (1, 1, [0.0], [False])


def test_training_ranks_what_it_was_taught(tiny_model: str) -> None:
    pairs = some_pairs(8)
    one = trainer(tiny_model, steps=60, lr=5e-3)
    start = one.judge(pairs)
    assert (start.loss, start.accuracy) == pytest.approx(
        (np.mean([np.log1p(np.exp(pair.margin)) for pair in pairs]), 0.5), abs=1e-5
    )  # a new head says 0
    for _ in range(60):
        numbers = one.step(pairs)
    assert one.judge(pairs).accuracy == 1.0
    assert numbers["loss"] < 0.3 < start.loss


def test_a_loss_that_is_not_finite_moves_nothing(scorer_folder: str) -> None:
    one = trainer(scorer_folder)
    with torch.no_grad():
        one.model.lm.score.weight.fill_(float("nan"))
    before = one.model.lm.model.embed_tokens.weight.clone()
    with pytest.raises(PolicyError, match=r"reward model, step 1: the loss is nan.*Lower reward_training\.lr"):
        one.step(some_pairs(2))
    assert torch.equal(before, one.model.lm.model.embed_tokens.weight)

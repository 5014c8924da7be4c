"""A whole fine-tuning run on the tiny policy: the loss against plain torch, splits, resume, and the books."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.sft.conftest import MakeConfig
from verl_core.config import RunConfig
from verl_core.data.tokenizer import load_tokenizer
from verl_core.engine.loading import load_model
from verl_core.engine.merging import export
from verl_core.engine.sft_engine import LocalSft
from verl_core.errors import ConfigError, DataError, RecordError
from verl_core.record.owner import OwnerLock
from verl_core.record.rundir import RunDir
from verl_core.sft import run as sft_run
from verl_core.sft.exam import examined
from verl_core.sft.rows import Lessons, load_lessons
from verl_core.sft.run import SftSummary, fine_tune


def lessons_of(config: RunConfig) -> Lessons:
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    return load_lessons(config, config.data.train_files, tokenizer, -1)


def literal(config: RunConfig, lessons: Lessons) -> tuple[list[float], list[float]]:
    """Per row: sum of the losses of learnt tokens, one forward pass each, by torch's own cross entropy; and tokens."""
    model, sums, counts = load_model(config.actor_rollout_ref.model.path), [], []
    for row in lessons.rows:
        ids = torch.from_numpy(row.ids.astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1]
        each = cross_entropy(logits, ids[1:], reduction="none")
        sums.append(float(each[torch.from_numpy(row.learnt[1:])].sum()))
        counts.append(float(row.learnt.sum()))
    return sums, counts


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_loss_is_the_likelihood_of_the_learnt_tokens(sft_config: MakeConfig, mode: str) -> None:
    config = sft_config(actor_rollout_ref__actor__loss_agg_mode=mode)
    lessons = lessons_of(config)
    sums, counts = literal(config, lessons)
    token_mean = sum(sums) / sum(counts)
    expected = token_mean if mode == "token-mean" else float(np.mean(np.divide(sums, counts)))
    engine = LocalSft(config, 10, "")
    batch = lessons.batch(range(len(lessons.rows)))
    exam = examined(engine, batch)
    assert exam["val/loss"] == pytest.approx(token_mean, rel=1e-5)
    assert exam["val/perplexity"] == pytest.approx(math.exp(token_mean), rel=1e-5)
    assert exam["val/sampled_accuracy"] == pytest.approx(float(np.mean(np.exp(np.negative(sums)))), rel=1e-4)
    config.data.train_batch_size = len(lessons.rows)
    assert LocalSft(config, 10, "").update(batch, 1)["sft/loss"] == pytest.approx(expected, rel=1e-5)


def test_micro_batches_change_nothing(sft_config: MakeConfig) -> None:
    losses, grads, weights = [], [], []
    for budget in (20, 4096):
        config = sft_config()
        config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = budget  # 20: nearly every row alone
        engine = LocalSft(config, 10, "")
        found = engine.update(lessons_of(config).batch([0, 1, 2, 3]), 1)
        assert found["sft/updates"] == 1.0
        losses.append(found["sft/loss"])
        grads.append(found["sft/grad_norm"])
        weights.append(examined(engine, lessons_of(config).batch(range(11)))["val/loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert grads[0] == pytest.approx(grads[1], rel=1e-5)
    assert weights[0] == pytest.approx(weights[1], rel=1e-4)


@pytest.fixture
def done(sft_config: MakeConfig) -> tuple[RunConfig, SftSummary]:
    config = sft_config()
    return config, fine_tune(config)


def test_a_run_learns_and_keeps_its_books(done: tuple[RunConfig, SftSummary], tmp_path: Path) -> None:
    config, summary = done
    run = tmp_path / "sft"
    assert summary.steps == 6  # two epochs of three batches
    assert summary.val_before is not None
    assert summary.val_after is not None
    assert summary.val_after["val/loss"] < 0.8 * summary.val_before["val/loss"]
    assert json.loads((run / "summary.json").read_text())["val_after"] == summary.val_after
    assert summary.checkpoint == str(run / "checkpoints" / "000006")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["step"] for row in rows if "val/loss" in row] == [0, 3, 6]
    assert rows[6]["sft/lr"] < rows[1]["sft/lr"]
    page = (run / "report.html").read_text()
    assert "Loss over steps" in page
    assert "supervised fine-tuning" in page
    # The checkpoint is a model folder: what it is worth, plain transformers says.
    config.actor_rollout_ref.model.path = summary.checkpoint
    sums, counts = literal(config, lessons_of(config))
    assert sum(sums) / sum(counts) == pytest.approx(summary.val_after["val/loss"], rel=1e-4)


def test_a_run_that_was_cut_off_ends_with_the_same_weights(
    done: tuple[RunConfig, SftSummary], sft_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, calm = done
    config = sft_config(trainer__experiment_name="cut")
    step, trained = sft_run._Job._step, []

    def dying(job: sft_run._Job, number: int) -> dict[str, float]:
        if number == 4 and 4 not in trained:
            trained.append(number)
            raise KeyboardInterrupt
        trained.append(number)
        return step(job, number)

    monkeypatch.setattr(sft_run._Job, "_step", dying)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(config)
    again = fine_tune(config)
    assert trained == [1, 2, 3, 4, 3, 4, 5, 6]  # from the checkpoint of step 2
    assert again.final_weights_sha256 == calm.final_weights_sha256
    assert again.val_after == calm.val_after
    trained.clear()
    assert fine_tune(config).final_weights_sha256 == calm.final_weights_sha256
    assert trained == []  # a run that is done is only summed up


def test_a_run_that_is_further_than_its_length_is_refused(sft_config: MakeConfig) -> None:
    constant = {"actor_rollout_ref__actor__optim__lr_scheduler_type": "constant", "trainer__total_epochs": 30}
    fine_tune(sft_config(trainer__total_training_steps=2, **constant))
    with pytest.raises(ConfigError, match=r"has a checkpoint of step 2, and the run is to end at step 1\. Raise"):
        fine_tune(sft_config(trainer__total_training_steps=1, **constant))
    assert fine_tune(sft_config(trainer__total_training_steps=3, **constant)).steps == 3


def test_a_run_that_lost_its_directory_stops_before_the_next_step(
    sft_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def check(lock: OwnerLock) -> None:
        if (tmp_path / "sft/steps/000002").exists():
            raise RecordError("the lease ran out")

    monkeypatch.setattr(OwnerLock, "check", check)
    with pytest.raises(RecordError, match="ran out"):
        fine_tune(sft_config())
    assert not (tmp_path / "sft/steps/000003").exists()


def test_an_attempt_of_the_same_execution_takes_the_directory_over(sft_config: MakeConfig, tmp_path: Path) -> None:
    length = {"trainer__total_training_steps": 1, "trainer__total_epochs": 30}
    held = OwnerLock.acquire(RunDir(str(tmp_path / "sft")), "execution")
    try:
        with pytest.raises(RecordError, match="in use by execution"):
            fine_tune(sft_config(**length))
        assert fine_tune(sft_config(**length), "execution").steps == 1
    finally:
        held.release()


def test_over_long_validation_rows_are_counted(sft_config: MakeConfig) -> None:
    """Of the eleven rows the four with two questions are longer than 12 tokens."""
    settings = {"sft__max_length": 12, "data__truncation": "drop", "trainer__total_training_steps": 1}
    summary = fine_tune(sft_config(**settings, trainer__total_epochs=30, data__train_max_samples=7))
    assert (summary.rows + summary.dropped, summary.val_dropped) == (7, 4)


@pytest.mark.parametrize("column", ["train_files", "val_files"])
def test_rows_that_are_longer_than_the_model_reads_are_refused(
    sft_config: MakeConfig, policy_folder: str, chats: str, tmp_path: Path, column: str
) -> None:
    """In training and in validation; with less to read the advice of the message helps."""
    narrow, short = tmp_path / "narrow", tmp_path / "short.jsonl"
    shutil.copytree(policy_folder, narrow)
    told = json.loads((narrow / "config.json").read_text())
    (narrow / "config.json").write_text(json.dumps(told | {"max_position_embeddings": 12}))
    short.write_text("\n".join(Path(chats).read_text().splitlines()[1:3]))
    files = {"data__train_files": [str(short)], "data__val_files": [str(short)], f"data__{column}": [chats]}
    config = sft_config(actor_rollout_ref__model__path=str(narrow), **files)
    lengths = [len(row.ids) for row in load_lessons(config, [chats], load_tokenizer(policy_folder), -1).rows]
    worst = lengths.index(max(lengths))
    assert sum(length > 12 for length in lengths) == 4
    with pytest.raises(DataError) as caught:
        fine_tune(config)
    refusal = f"{chats}, row {worst} has {max(lengths)} tokens, the model reads 12 (max_position_embeddings). Set "
    assert str(caught.value).startswith(refusal)
    assert not (tmp_path / "sft/start.json").exists()  # nothing was begun
    advice = {"sft__max_length": 12, "data__truncation": "drop", "trainer__total_epochs": 1}
    summary = fine_tune(sft_config(actor_rollout_ref__model__path=str(narrow), **files, **advice))
    assert (summary.dropped, summary.val_dropped) == ((4, 0) if column == "train_files" else (0, 4))


def test_another_set_of_rows_is_refused(sft_config: MakeConfig, tmp_path: Path, chats: str) -> None:
    copy = tmp_path / "rows.jsonl"
    copy.write_text(Path(chats).read_text())
    config = sft_config(data__train_files=[str(copy)], trainer__total_training_steps=1, trainer__total_epochs=30)
    fine_tune(config)
    copy.write_text("\n".join(Path(chats).read_text().splitlines()[:-1]))
    with pytest.raises(DataError, match="the training data is not what"):
        fine_tune(config)


def test_configurations_of_the_other_kind_are_refused(sft_config: MakeConfig) -> None:
    from verl_core.trainer.open import open_trainer

    config = sft_config()
    with pytest.raises(ConfigError, match=r"run workflows/sft\.py"), open_trainer(config):
        pass
    config.sft.enable = False
    with pytest.raises(ConfigError, match=r"Set sft\.enable=true"):
        fine_tune(config)


def test_an_adapter_can_be_fine_tuned_alone(sft_config: MakeConfig) -> None:
    config = sft_config(actor_rollout_ref__model__lora_rank=8, trainer__experiment_name="adapter")
    summary = fine_tune(config)
    assert summary.val_before is not None
    assert summary.val_after is not None
    assert summary.val_after["val/loss"] < 0.98 * summary.val_before["val/loss"]
    assert not (Path(summary.checkpoint) / "model.safetensors").exists()
    merged = export(config.actor_rollout_ref.model.path, summary.checkpoint, f"{summary.run_dir}/merged")
    config.actor_rollout_ref.model.path = str(merged)
    sums, counts = literal(config, lessons_of(config))
    assert sum(sums) / sum(counts) == pytest.approx(summary.val_after["val/loss"], rel=1e-4)


@pytest.mark.slow
def test_two_ranks_are_one(ray_cluster: None, sft_config: MakeConfig) -> None:
    length = {"trainer__total_training_steps": 3, "trainer__total_epochs": 30}
    alone = fine_tune(sft_config(trainer__experiment_name="alone", **length))
    two = fine_tune(sft_config(trainer__experiment_name="two", trainer__n_gpus_per_node=2, **length))
    assert two.loss_first5 == pytest.approx(alone.loss_first5, rel=1e-4)
    assert two.val_after is not None
    assert alone.val_after is not None
    assert two.val_after["val/loss"] == pytest.approx(alone.val_after["val/loss"], rel=1e-3)

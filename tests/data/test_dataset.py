"""From files to the two streams of a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from verl_core.config.schema import PrepareConfig, RunConfig
from verl_core.data.dataset import load_dataset, training_stream, validation_stream
from verl_core.data.prepare import PreparedData, prepare
from verl_core.data.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    config = PrepareConfig(task="one_digit_sums", train_size=50, val_size=20)
    return prepare(config, str(tmp_path_factory.mktemp("data") / "sums"))


def config_of() -> RunConfig:
    config = RunConfig()
    config.data.train_batch_size, config.data.max_prompt_length = 8, 9
    return config


def test_training_prompts_follow_the_configuration(prepared: PreparedData, tokenizer: ChatTokenizer) -> None:
    config = config_of()
    config.actor_rollout_ref.rollout.n = 3
    stream = training_stream(config, [prepared.train], tokenizer)
    prompt = stream.take(8, step=1)[0]
    assert (prompt.n, prompt.validation, stream.steps_per_epoch) == (3, False, 6)  # 50 rows, batches of 8
    assert tokenizer.decode(prompt.token_ids) == f"u:{prompt.messages[0]['content']};a:"
    config.data.train_max_samples = 16
    assert training_stream(config, [prepared.train], tokenizer).steps_per_epoch == 2


def test_validation_serves_the_whole_set_in_file_order(prepared: PreparedData, tokenizer: ChatTokenizer) -> None:
    config = config_of()
    stream = validation_stream(config, [str(prepared.val)], tokenizer)
    assert stream is not None
    first, second = stream.take(20, step=0), stream.take(20, step=5)
    assert [prompt.row for prompt in first] == [prompt.row for prompt in second] == list(range(20))
    assert first[0].validation
    assert {prompt.uid for prompt in first}.isdisjoint(prompt.uid for prompt in second)
    config.actor_rollout_ref.rollout.val_kwargs.temperature = 0.6
    sampled = validation_stream(config, [str(prepared.val)], tokenizer)
    assert sampled is not None
    assert sampled.take(1, 0)[0].validation
    assert validation_stream(config, [], tokenizer) is None


def test_streams_carry_the_report_and_log_it(
    prepared: PreparedData, tokenizer: ChatTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of()
    config.data.max_prompt_length, config.data.truncation = 7, "left"
    with caplog.at_level(logging.INFO):
        train = training_stream(config, [prepared.train], tokenizer)
        val = validation_stream(config, [str(prepared.val)], tokenizer)
    assert train.report is not None
    assert val is not None
    assert val.report is not None
    assert (len(train.report.cut), len(val.report.cut)) == (50, 20)
    assert caplog.messages == [
        "training data: 50 rows, longest prompt 9 tokens, 0 over-long rows dropped, 50 cut at the left",
        "validation data: 20 rows, longest prompt 9 tokens, 0 over-long rows dropped, 20 cut at the left",
    ]


def test_the_report_counts_what_was_cut(prepared: PreparedData, tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    config = config_of()
    config.data.max_prompt_length, config.data.truncation = 7, "left"
    dataset = load_dataset([prepared.train], config.data, tokenizer)  # "u:3+4=;a:" has 9 tokens
    assert dataset.report.cut == list(range(50))
    assert {len(row.token_ids) for row in dataset.rows} == {7}

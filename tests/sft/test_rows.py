"""Rows to batches, and the order of an epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.sft.conftest import MakeConfig
from verl_core.data import order as data_order
from verl_core.data.tokenizer import load_tokenizer
from verl_core.errors import ConfigError, DataError
from verl_core.sft.order import EpochBatches
from verl_core.sft.rows import load_lessons


def test_a_batch_keeps_rows_apart(sft_config: MakeConfig, policy_folder: str, chats: str) -> None:
    tokenizer = load_tokenizer(policy_folder)
    lessons = load_lessons(sft_config(), [chats], tokenizer, -1)
    batch = lessons.batch([3, 1])
    assert batch.keys == [f"{chats}, row 3", f"{chats}, row 1"]
    assert batch.group_index.tolist() == [0, 1]
    for row, (question, learnt) in enumerate((("3+1=", "4<|end|>yes, 4<|end|>"), ("1+1=", "2<|end|>"))):
        alone = batch.select([row])
        assert tokenizer.decode(alone.prompt_ids, False) == f"<|user|>{question}<|end|><|assistant|>"
        assert tokenizer.decode(alone.response_ids[alone.response_mask], False) == learnt
        assert alone.response_mask[0]
        assert alone.response_mask[-1]


def test_prompt_and_answer_rows_give_the_same_lessons(
    sft_config: MakeConfig, policy_folder: str, tmp_path: Path
) -> None:
    question = [{"role": "user", "content": "1+1="}]
    told = tmp_path / "told.jsonl"
    told.write_text(json.dumps({"messages": [*question, {"role": "assistant", "content": "2"}]}))
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"prompt": question, "data_source": "x", "reward_model": {"ground_truth": 2}}))
    tokenizer = load_tokenizer(policy_folder)
    first = load_lessons(sft_config(), [str(told)], tokenizer, -1)
    second = load_lessons(sft_config(sft__messages_key=None), [str(asked)], tokenizer, -1)
    assert first.digest == second.digest


def test_over_long_rows_are_refused_or_counted(sft_config: MakeConfig, policy_folder: str, chats: str) -> None:
    tokenizer = load_tokenizer(policy_folder)
    with pytest.raises(DataError, match=r"4 of 11 rows are longer than sft.max_length=12: .*row 0: \d+ tokens"):
        load_lessons(sft_config(sft__max_length=12), [chats], tokenizer, -1)
    kept = load_lessons(sft_config(sft__max_length=12, data__truncation="drop"), [chats], tokenizer, -1)
    assert (len(kept.rows), kept.dropped) == (7, 4)
    assert len(load_lessons(sft_config(), [chats], tokenizer, 5).rows) == 5


def test_bad_rows_are_named(sft_config: MakeConfig, policy_folder: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"text": "x"}))
    with pytest.raises(DataError, match="row 0, column messages: is missing; the row has text"):
        load_lessons(sft_config(), [str(file)], load_tokenizer(policy_folder), -1)
    for question, answer, message in (("", "2", r"message 0 \(user\)"), ("1+1=", " ", r"message 1 \(assistant\)")):
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        file.write_text(json.dumps({"messages": chat}))
        with pytest.raises(DataError, match=f"row 0, column messages: {message} is empty; fill it or delete the row"):
            load_lessons(sft_config(), [str(file)], load_tokenizer(policy_folder), -1)


def test_an_epoch_is_every_row_once() -> None:
    order = EpochBatches(rows=11, batch_size=4, shuffle=True, seed=5)
    assert order.steps_per_epoch == 3
    epochs = [[order.rows_of(step) for step in range(1 + 3 * epoch, 4 + 3 * epoch)] for epoch in range(2)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [4, 4, 3]
        assert sorted(np.concatenate(batches)) == list(range(11))
    assert epochs[0] != epochs[1]
    assert EpochBatches(11, 4, True, 5).rows_of(5) == epochs[1][1]
    assert EpochBatches(11, 4, False, 5).rows_of(3) == [8, 9, 10]
    assert [order.epoch_of(step) for step in (1, 3, 4, 7)] == [0, 0, 1, 2]


def test_the_order_is_that_of_numpys_pinned_stream_and_made_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`permutation` may change with numpy, the words of PCG64 may not."""
    words = np.random.PCG64(np.random.SeedSequence([5, 1])).random_raw(11).tolist()
    by_hand = [words.index(word) for word in sorted(words)]
    made, epoch_order = [], data_order.epoch_order

    def counted(rows: int, seed: int, epoch: int) -> data_order.Rows:
        made.append(epoch)
        return epoch_order(rows, seed, epoch)

    monkeypatch.setattr(data_order, "epoch_order", counted)
    order = EpochBatches(11, 4, True, 5)
    assert [row for step in (4, 5, 6) for row in order.rows_of(step)] == by_hand
    assert made == [1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"actor_rollout_ref__rollout__n": 2}, "actor_rollout_ref.rollout.n: has no effect with sft.enable=true"),
        ({"algorithm__use_kl_in_reward": True}, "algorithm.use_kl_in_reward: has no effect with sft.enable=true"),
        (
            {"actor_rollout_ref__model__lora_rank": 8, "actor_rollout_ref__model__lora__merge": True},
            "actor_rollout_ref.model.lora.merge: has no effect with sft.enable=true",
        ),
        ({"ray__mode": "per_task"}, "ray.mode: has no effect with sft.enable=true"),
        ({"sft__enable": False}, "sft.max_length: has no effect without sft.enable=true"),
        ({"data__truncation": "left"}, "data.truncation: left would teach answers to half a question"),
        ({"data__prompt_key": "question"}, "data.prompt_key: has no effect with sft.messages_key=messages"),
        (
            {"data__train_files": [], "data__val_files": [], "data__prepare__task": "one_digit_sums"},
            "sft.messages_key: rows of data.prepare have a prompt and an answer, and no column 'messages'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_fine_tuning_does_not_read_is_refused(
    sft_config: MakeConfig, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sft_config(**overrides)
    assert message in str(caught.value)


def test_an_adapter_that_no_server_takes_can_be_fine_tuned(sft_config: MakeConfig) -> None:
    assert sft_config(actor_rollout_ref__model__lora_rank=600).actor_rollout_ref.model.lora_rank == 600

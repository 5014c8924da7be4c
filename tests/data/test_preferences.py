"""Rows of preferences become ids once; what cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verl_core.data.preferences import preferences_of, read_preferences
from verl_core.data.row import DatasetRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.reward_training.pairs import pairs_of
from verl_core.warm_start.tokenizer import make_tokenizer

TOKENIZER = ChatTokenizer(make_tokenizer(), "tiny")
PROMPT = TOKENIZER.encode_chat([{"role": "user", "content": "3+4="}], "").tolist()
END = TOKENIZER.eos_token_id


def rows(*records: dict[str, Any]) -> list[tuple[list[int], list[int], float]]:
    found = preferences_of([(f"row {place}", record) for place, record in enumerate(records)], TOKENIZER)
    return [(one.chosen.tolist(), one.rejected.tolist(), one.margin) for one in found]


def test_text_and_chats_give_the_ids_of_a_rollout() -> None:
    right, wrong = [*PROMPT, *TOKENIZER.encode("7"), END], [*PROMPT, *TOKENIZER.encode("12"), END]
    chat = [{"role": "user", "content": "3+4="}]
    found = rows(
        {"prompt": "3+4=", "chosen": "7", "rejected": "12"},
        {"prompt": chat, "chosen": [{"role": "assistant", "content": "7"}], "rejected": "12", "margin": 0.5},
        {"prompt": chat, "chosen": "7", "rejected": "7", "rejected_stop": "length"},
    )
    assert found == [(right, wrong, 0.0), (right, wrong, 0.5), (right, right[:-1], 0.0)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "", "chosen": "7", "rejected": "8"}, "row 0, column prompt: expected text or chat messages"),
        ({"prompt": "1+1=", "chosen": "2"}, "row 0, column rejected: expected text or one message"),
        ({"prompt": "1+1=", "chosen": "2", "rejected": "2"}, "row 0: chosen and rejected are the same tokens"),
        ({"prompt": "1+1=", "chosen": "2", "rejected": "3", "margin": -1}, "column margin: expected a number"),
        ({"prompt": "1+1=", "chosen": "2", "rejected": "3", "chosen_stop": "eos"}, "column chosen_stop: expected stop"),
    ],
)
def test_unusable_rows_are_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message.replace("[", r"\[")):
        rows(record)


def test_files_are_read_in_order(tmp_path: Path) -> None:
    files = []
    for name, answer in (("a", "7"), ("b", "8")):
        files.append(str(tmp_path / f"{name}.jsonl"))
        Path(files[-1]).write_text(json.dumps({"prompt": "3+4=", "chosen": answer, "rejected": "0"}) + "\n")
    assert [one.chosen.tolist() for one in read_preferences(files, TOKENIZER)] == [
        [*PROMPT, *TOKENIZER.encode(answer), END] for answer in ("7", "8")
    ]


SUMS = [
    DatasetRow(0, "here", [{"role": "user", "content": f"{a}+{b}="}], "s", str(a + b)) for a in range(5) for b in (1, 9)
]


def test_built_pairs_are_right_against_wrong_and_repeat() -> None:
    made = pairs_of(SUMS, 400, (1, 0), longest=6)
    truths = {row.messages[0]["content"]: row.ground_truth for row in SUMS}
    assert all(pair["chosen"] == truths[pair["prompt"][0]["content"]] for pair in made)
    ended = [pair for pair in made if pair["rejected_stop"] == "stop"]
    cut = [pair for pair in made if pair["rejected_stop"] == "length"]
    assert all(pair["rejected"] != pair["chosen"] for pair in ended)
    assert {len(pair["rejected"]) for pair in cut} == {6}
    assert {"", "10", "3"} <= {pair["rejected"] for pair in ended}
    assert any(pair["rejected"].startswith(pair["chosen"]) for pair in cut)
    assert pairs_of(SUMS, 400, (1, 0), longest=6) == made
    assert pairs_of(SUMS, 400, (1, 1), longest=6) != made
    preferences_of([("", pair) for pair in made], TOKENIZER)  # all of them can be trained on


def test_pairs_need_answers_that_differ() -> None:
    with pytest.raises(DataError, match="here: no ground_truth"):
        pairs_of([DatasetRow(0, "here", SUMS[0].messages, "s", None)], 1, (1, 0), 6)
    with pytest.raises(DataError, match="nothing to tell apart"):
        pairs_of(SUMS[:1], 1, (1, 0), 6)

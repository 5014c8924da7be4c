"""Rows of preferences become ids once; what cannot be used is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from verl_core.data.preferences import as_answered, as_sampled, preferences_of
from verl_core.data.reward_tokenizer import answered_chat
from verl_core.data.row import DatasetRow
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.reward_training.pairs import _Wrong, pairs_of
from verl_core.reward_training.recipe import _is_right
from verl_core.warm_start.tokenizer import make_tokenizer

TOKENIZER = ChatTokenizer(make_tokenizer(), "tiny")
PROMPT = TOKENIZER.encode_chat([{"role": "user", "content": "3+4="}], "").tolist()
END = TOKENIZER.eos_token_id


def rows(*records: dict[str, Any]) -> list[tuple[list[int], list[int], float]]:
    found = preferences_of([(f"row {place}", record) for place, record in enumerate(records)], as_sampled(TOKENIZER))
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


def test_a_model_that_reads_text_is_taught_what_it_will_be_shown() -> None:
    """The whole chat by its own template; a response that was cut looks like one that ended."""
    record = {"prompt": "3+4=", "chosen": "7", "rejected": "77", "rejected_stop": "length"}
    (found,) = preferences_of([("row", record)], as_answered(TOKENIZER))
    user = {"role": "user", "content": "3+4="}
    for row, answer in ((found.chosen, "7"), (found.rejected, "77")):
        shown = answered_chat(TOKENIZER, [user], answer, "row")  # as `ModelScorer` does it
        assert row.tolist() == shown.tolist()
        assert row.tolist()[-1] == END
    with pytest.raises(DataError, match="chosen and rejected are the same tokens"):
        preferences_of([("row", {**record, "rejected": "7"})], as_answered(TOKENIZER))


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


SUMS = [
    DatasetRow(0, "here", [{"role": "user", "content": f"{a}+{b}="}], "s", str(a + b)) for a in range(5) for b in (1, 9)
]


def _never(row: DatasetRow, response: str) -> bool:
    return False


def test_built_pairs_are_right_against_wrong_and_repeat() -> None:
    made = pairs_of(SUMS, 400, (1, 0), longest=6, right=_never)
    truths = {row.messages[0]["content"]: row.ground_truth for row in SUMS}
    assert all(pair["chosen"] == truths[pair["prompt"][0]["content"]] for pair in made)
    ended = [pair for pair in made if pair["rejected_stop"] == "stop"]
    cut = [pair for pair in made if pair["rejected_stop"] == "length"]
    assert all(pair["rejected"] != pair["chosen"] for pair in ended)
    assert {len(pair["rejected"]) for pair in cut} == {6}
    assert {"", "10", "3"} <= {pair["rejected"] for pair in ended}
    assert any(pair["rejected"].startswith(pair["chosen"]) for pair in cut)
    assert pairs_of(SUMS, 400, (1, 0), longest=6, right=_never) == made
    assert pairs_of(SUMS, 400, (1, 1), longest=6, right=_never) != made
    preferences_of([("", pair) for pair in made], as_sampled(TOKENIZER))  # all of them can be trained on


def test_pairs_need_answers_that_differ() -> None:
    with pytest.raises(DataError, match="here: no ground_truth"):
        pairs_of([DatasetRow(0, "here", SUMS[0].messages, "s", None)], 1, (1, 0), 6, _never)
    with pytest.raises(DataError, match="nothing to tell apart"):
        pairs_of(SUMS[:1], 1, (1, 0), 6, _never)


def test_wrong_numbers_are_of_every_size_that_an_answer_may_have() -> None:
    def drawn(*truths: str) -> set[str]:
        maker = _Wrong(np.random.default_rng(0), truths, "0123456789", 6, _never)
        return {maker._any(truths[0])[0] for _ in range(500)}

    small = drawn("7", "13")
    assert small <= {str(number) for number in range(100)}
    assert len(small) > 80
    assert {len(number) for number in drawn("9" * 40)} == {1, 2, 3, 4, 5, 6}  # a response has no more places
    assert all("se" in text or "ven" in text for text in drawn("seven", "13"))  # text has a slip


def _number(text: str) -> float | None:
    try:
        return float(text.replace(" ", ""))
    except ValueError:
        return None


def test_what_only_looks_different_is_wrong_where_the_verifier_says_so() -> None:
    truths = ("12", "7", "-3")
    rows_ = [DatasetRow(0, "here", [{"role": "user", "content": "0+ ="}], "s", truth) for truth in truths]
    made = pairs_of(rows_, 4000, (1, 0), 6, lambda row, text: row.ground_truth != "7")
    ended = [(pair["chosen"], pair["rejected"]) for pair in made if pair["rejected_stop"] == "stop"]
    alike = {pair for pair in ended if _number(pair[0]) == _number(pair[1])}
    assert {right for right, _ in alike} == {"7"}
    assert {"07", " 7", "7 "} <= {wrong for _, wrong in alike}
    near = {wrong for right, wrong in ended if right == "-3"}
    assert {str(number) for number in range(-6, 1) if number != -3} <= near


def test_a_verifier_without_a_name_calls_alike_right() -> None:
    digits = DatasetRow(0, "here", [], "one_digit_sums", "7")
    nobody = DatasetRow(0, "here", [], "nobody", "7")
    chain = DatasetRow(0, "here", [], "reasoning_gym/chain_sum", "12", {})
    assert [_is_right(digits, "07"), _is_right(nobody, "07"), _is_right(chain, " 12")] == [False, True, True]

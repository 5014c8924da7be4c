"""From chats to ids: the template's own text, byte by byte, and what happens to over-long prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.data.row import DatasetRow
from verl_core.data.tokenize import tokenize_rows
from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer
from verl_core.errors import DataError, ModelError


def row(number: int, text: str, role: str = "user") -> DatasetRow:
    return DatasetRow(number, f"f.jsonl, row {number}", [{"role": role, "content": text}], "s", "t")


def text_of(tokenizer: ChatTokenizer, ids: Any) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_ids_are_those_of_the_template(tokenizer: ChatTokenizer) -> None:
    chat = [{"role": "system", "content": "é"}, {"role": "user", "content": "1+1="}]
    ids = tokenizer.encode_chat(chat, "here")
    assert ids.dtype == np.int32
    assert text_of(tokenizer, ids) == "s:é;u:1+1=;a:"
    assert len(ids) == len("s:é;u:1+1=;a:".encode())


def test_special_tokens_are_left_out_of_decoded_responses(tokenizer: ChatTokenizer) -> None:
    ids = [*tokenizer.encode_chat([{"role": "user", "content": "4"}], "here").tolist(), tokenizer.eos_token_id]
    assert tokenizer.decode(ids) == "u:4;a:"
    assert tokenizer.batch_decode([ids, ids[:2]]) == ["u:4;a:", "u:"]


def test_rows_that_fit_are_kept_in_order(tokenizer: ChatTokenizer) -> None:
    rows, report = tokenize_rows([row(0, "ab"), row(1, "abc")], tokenizer, 8, "error")
    assert [text_of(tokenizer, kept.token_ids) for kept in rows] == ["u:ab;a:", "u:abc;a:"]
    assert (report.total, report.longest, report.dropped, report.cut) == (2, 8, [], [])


def test_over_long_prompts_are_an_error_that_lists_them(tokenizer: ChatTokenizer) -> None:
    # "u:" + text + ";a:" is len(text) + 5 bytes: the limit of 7 lets two characters through
    with pytest.raises(DataError) as caught:
        tokenize_rows([row(0, "ab"), *(row(number, "a" * 3) for number in range(1, 8))], tokenizer, 7, "error")
    told = str(caught.value)
    assert told.startswith("7 of 8 prompts are longer than data.max_prompt_length=7 tokens: f.jsonl, row 1: 8 tokens; ")
    assert (
        "row 5: 8 tokens and 2 more. Raise data.max_prompt_length to 8, or set data.truncation to drop or left" in told
    )


def test_over_long_prompts_are_dropped_and_counted(tokenizer: ChatTokenizer) -> None:
    rows, report = tokenize_rows([row(0, "a"), row(1, "a" * 9), row(2, "b")], tokenizer, 7, "drop")
    assert [kept.source.row for kept in rows] == [0, 2]
    assert (report.dropped, report.cut, report.longest) == ([1], [], 14)
    assert str(report) == "3 rows, longest prompt 14 tokens, 1 over-long rows dropped, 0 cut at the left"


def test_over_long_prompts_keep_their_end_with_left(tokenizer: ChatTokenizer) -> None:
    rows, report = tokenize_rows([row(0, "abcdef")], tokenizer, 7, "left")
    assert text_of(tokenizer, rows[0].token_ids) == "cdef;a:"
    assert (report.dropped, report.cut) == ([], [0])


def test_dropping_everything_is_an_error(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(DataError, match=r"all 1 prompts are longer than data.max_prompt_length=3; raise it"):
        tokenize_rows([row(0, "a")], tokenizer, 3, "drop")


def test_a_prompt_that_the_template_refuses_names_its_row(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(
        DataError, match=r"f\.jsonl, row 4: the chat template of .* refuses the prompt: unknown role tool"
    ):
        tokenize_rows([row(4, "a", role="tool")], tokenizer, 9, "error")


def test_a_template_that_makes_nothing_names_the_row(tmp_path: Path, make_tokenizer: Any) -> None:
    silent = load_tokenizer(make_tokenizer(tmp_path, template="{{ '' }}"))
    with pytest.raises(DataError, match=r"row 0: the chat template of .* makes no token of the prompt"):
        tokenize_rows([row(0, "a")], silent, 9, "error")


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder .*/none; set actor_rollout_ref.model.path"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_folder_without_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no usable tokenizer in .*: copy tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="no usable tokenizer in"):
        load_tokenizer(str(tmp_path))


def test_a_broken_tokenizer_is_told(tmp_path: Path, make_tokenizer: Any) -> None:
    folder = make_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="no usable tokenizer in"):
        load_tokenizer(folder)


def test_a_folder_without_chat_template_is_told(tmp_path: Path, make_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"has no chat template; add chat_template\.jinja"):
        load_tokenizer(make_tokenizer(tmp_path, template=None))


def test_a_tokenizer_without_end_token_is_told(tmp_path: Path, make_tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="the tokenizer has no end token"):
        load_tokenizer(make_tokenizer(tmp_path, eos=None))

"""Reading: verl's format in both kinds of file, and every way a row can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.data.reader import read_rows
from verl_core.data.row import Columns
from verl_core.errors import DataError

GOOD: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0},
}


def jsonl(folder: Path, *rows: Any, name: str = "data.jsonl") -> str:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def parquet(folder: Path, rows: list[dict[str, Any]], name: str = "data.parquet") -> str:
    path = folder / name
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def refused(*files: str) -> str:
    with pytest.raises(DataError) as caught:
        read_rows(files)
    return str(caught.value)


@pytest.mark.parametrize("write", [parquet, lambda folder, rows: jsonl(folder, *rows)], ids=["parquet", "jsonl"])
def test_both_kinds_of_file_give_the_same_rows(tmp_path: Path, write: Any) -> None:
    other = {**GOOD, "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é世?"}]}
    rows = read_rows([write(tmp_path, [GOOD, other])])
    assert [row.row for row in rows] == [0, 1]
    assert rows[0].messages == GOOD["prompt"]
    assert rows[1].messages == other["prompt"]
    assert (rows[0].data_source, rows[0].ground_truth) == ("openai/gsm8k", "2")
    assert rows[0].extra_info == {"split": "train", "index": 0}


def test_rows_count_on_over_files_and_places_do_not(tmp_path: Path) -> None:
    rows = read_rows([parquet(tmp_path, [GOOD, GOOD]), jsonl(tmp_path, GOOD)])
    assert [row.row for row in rows] == [0, 1, 2]
    assert rows[2].place.endswith("data.jsonl, row 0")
    assert rows[1].place.endswith("data.parquet, row 1")


def test_max_rows_keeps_the_first_and_reads_no_further(tmp_path: Path) -> None:
    file = jsonl(tmp_path, GOOD, GOOD, "broken")
    assert len(read_rows([file], max_rows=2)) == 2
    assert "row 2: not JSON" in refused(file)


def test_nulls_that_parquet_adds_to_messages_are_taken_away(tmp_path: Path) -> None:
    """Parquet has one struct for all messages, so a field of one is null in the others."""
    prompt = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "name": "bob"}]
    rows = read_rows([parquet(tmp_path, [{**GOOD, "prompt": prompt}])])
    assert rows[0].messages == prompt


def test_renamed_columns(tmp_path: Path) -> None:
    row = {**GOOD, "question": GOOD["prompt"], "verifier": "mine"}
    del row["prompt"], row["data_source"]
    rows = read_rows([parquet(tmp_path, [row])], Columns("question", "verifier"))
    assert (rows[0].data_source, rows[0].messages) == ("mine", GOOD["prompt"])


def test_extra_info_is_optional_and_ground_truth_may_be_null(tmp_path: Path) -> None:
    row = {**GOOD, "reward_model": {"ground_truth": None}}
    del row["extra_info"]
    rows = read_rows([jsonl(tmp_path, row)])
    assert (rows[0].ground_truth, rows[0].extra_info) == (None, {})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(str(tmp_path / "none.parquet")).startswith(
        f"{tmp_path}/none.parquet: no such file; check data.train_files"
    )
    (tmp_path / "bad.parquet").write_text("not parquet")
    assert f"{tmp_path}/bad.parquet: not a readable parquet file" in refused(str(tmp_path / "bad.parquet"))
    (tmp_path / "data.csv").write_text("a,b")
    assert "data.csv: unknown kind of file '.csv'; use .parquet, .pq, .jsonl, .ndjson" in refused(
        str(tmp_path / "data.csv")
    )
    assert "no rows in " in refused(jsonl(tmp_path))
    assert refused() == "no rows in an empty list of files"


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    row = {key: value for key, value in GOOD.items() if key != column}
    assert f"data.parquet: column {column} is missing; the file has " in refused(parquet(tmp_path, [row]))
    assert f"data.jsonl, row 1, column {column}: is missing" in refused(jsonl(tmp_path, GOOD, row))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": []}, "column prompt: the prompt is empty"),
        ({"prompt": [{"role": "user", "content": " \n"}]}, "column prompt: the prompt is empty"),
        ({"prompt": "1+1?"}, "column prompt: expected chat messages [{role, content}, ...], got '1+1?'"),
        ({"prompt": ["1+1?"]}, "column prompt: expected chat messages {role, content}, got '1+1?'"),
        ({"prompt": [{"role": "user"}]}, "column prompt: a message needs role and content, both text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "a message needs role and content, both text"),
        ({"prompt": None}, "column prompt: is null"),
        ({"data_source": ""}, "column data_source: expected the name of a verifier, got ''"),
        ({"data_source": 3}, "column data_source: expected the name of a verifier, got 3"),
        ({"reward_model": {"style": "rule"}}, "column reward_model: expected a struct with ground_truth"),
        ({"reward_model": "2"}, "column reward_model: expected a struct with ground_truth, got '2'"),
        ({"extra_info": [1]}, "column extra_info: expected a struct or null, got [1]"),
    ],
)
def test_a_malformed_row_names_file_row_and_column(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    told = refused(jsonl(tmp_path, GOOD, {**GOOD, **change}))
    assert told.startswith(f"{tmp_path}/data.jsonl, row 1, ")
    assert message in told


def test_lines_that_are_not_objects(tmp_path: Path) -> None:
    assert "row 0: expected an object with the columns as names, got list" in refused(jsonl(tmp_path, [1]))
    assert "row 0: not JSON: " in refused(jsonl(tmp_path, "{'a': 1}"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xff"}\n')
    assert "row 0: not JSON: " in refused(str(tmp_path / "latin.jsonl"))

"""The documentation shows the messages of data word for word; relative paths make them read the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.data.reader import read_rows
from verl_core.data.tokenize import tokenize_rows
from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer
from verl_core.errors import VerlError

DOCS = Path(__file__).resolve().parents[2] / "docs"
GOOD: dict[str, Any] = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"ground_truth": "2"},
}


def documented(caught: pytest.ExceptionInfo[VerlError]) -> bool:
    return f"```text\n{caught.value}\n```" in (DOCS / "errors.md").read_text()


@pytest.fixture(autouse=True)
def _in_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_missing_file() -> None:
    with pytest.raises(VerlError) as caught:
        read_rows(["data/train.parquet"])
    assert documented(caught)


def test_missing_column() -> None:
    pq.write_table(pa.Table.from_pylist([{key: GOOD[key] for key in ("prompt", "reward_model")}]), "train.parquet")
    with pytest.raises(VerlError) as caught:
        read_rows(["train.parquet"])
    assert documented(caught)


@pytest.mark.parametrize(
    "change", [{"prompt": [{"role": "user", "content": ""}]}, {"prompt": "1+1?"}, {"reward_model": {"style": "rule"}}]
)
def test_malformed_rows(change: dict[str, Any]) -> None:
    Path("train.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, **change}) + "\n")
    with pytest.raises(VerlError) as caught:
        read_rows(["train.jsonl"])
    assert documented(caught)


def test_over_long_prompts(tokenizer: ChatTokenizer) -> None:
    long = {**GOOD, "prompt": [{"role": "user", "content": "1+1?" * 20}]}
    Path("train.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(long) + "\n")
    with pytest.raises(VerlError) as caught:
        tokenize_rows(read_rows(["train.jsonl"]), tokenizer, 64, "error")
    assert documented(caught)


def test_model_folders(make_tokenizer: Any) -> None:
    with pytest.raises(VerlError) as caught:
        load_tokenizer("models/none")
    assert documented(caught)
    Path("plain").mkdir()
    with pytest.raises(VerlError) as caught:
        load_tokenizer(make_tokenizer(Path("plain"), template=None))
    assert documented(caught)

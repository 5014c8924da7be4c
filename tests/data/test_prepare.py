"""Prepared datasets: every row right by hand arithmetic or by the task's own scorer, and nothing depends on the run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config.schema import PrepareConfig
from verl_core.data.digit_sums import PAIRS
from verl_core.data.prepare import prepare, rows_of
from verl_core.data.reader import read_rows
from verl_core.errors import DataError

SUMS = PrepareConfig(task="one_digit_sums", train_size=300, val_size=100)


def refused(config: PrepareConfig, folder: Path | str = "/nonexistent") -> str:
    with pytest.raises(DataError) as caught:
        prepare(config, str(folder))
    return str(caught.value)


def question(row: dict[str, Any]) -> str:
    return str(row["prompt"][-1]["content"])


def test_there_are_a_hundred_sums() -> None:
    assert sorted(PAIRS) == [(a, b) for a in range(10) for b in range(10)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 99), st.integers(1, 300))
def test_every_sum_is_right_and_no_held_out_pair_is_trained_on(seed: int, holdout: int, size: int) -> None:
    val_size = min(holdout or 100, 20)
    train, val = rows_of(
        PrepareConfig(task="one_digit_sums", train_size=size, val_size=val_size, seed=seed, config={"holdout": holdout})
    )
    assert (len(train), len(val)) == (size, val_size)
    for row in [*train, *val]:
        left, right = question(row).removesuffix("=").split("+")
        assert int(left) + int(right) == int(row["reward_model"]["ground_truth"])
        assert row["data_source"] == "one_digit_sums"
    assert len({question(row) for row in val}) == val_size
    if holdout:
        assert {question(row) for row in train}.isdisjoint(question(row) for row in val)


def test_validation_on_all_pairs_asks_each_once() -> None:
    _, val = rows_of(SUMS)
    assert Counter(map(question, val)) == Counter(f"{a}+{b}=" for a in range(10) for b in range(10))


def test_files_read_back_as_rows(tmp_path: Path) -> None:
    prepared = prepare(PrepareConfig(**{**vars(SUMS), "system_prompt": "Add."}), str(tmp_path / "out"))
    rows = read_rows([prepared.train])
    assert len(rows) == 300
    assert rows[0].messages[0] == {"role": "system", "content": "Add."}
    assert rows[7].extra_info["index"] == 7
    assert prepared.val is not None
    assert len(read_rows([prepared.val])) == 100


def test_the_same_settings_give_the_same_bytes_and_others_do_not(tmp_path: Path) -> None:
    first, second = prepare(SUMS, str(tmp_path / "a")), prepare(SUMS, str(tmp_path / "b"))
    other = prepare(PrepareConfig(**{**vars(SUMS), "seed": 2}), str(tmp_path / "c"))
    assert first.sha256 == second.sha256 != other.sha256
    assert Path(first.train).read_bytes() == Path(second.train).read_bytes() != Path(other.train).read_bytes()


def test_a_built_folder_is_used_again_and_a_foreign_one_replaced(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    first = prepare(SUMS, folder)
    born = Path(first.train).stat().st_ino
    assert prepare(SUMS, folder) == first
    assert Path(first.train).stat().st_ino == born
    without = prepare(PrepareConfig(**{**vars(SUMS), "val_size": 0}), folder)
    assert without.val is None
    assert sorted(path.name for path in Path(folder).iterdir()) == ["prepared.json", "train.parquet"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no scratch is left"


def test_nothing_is_published_when_building_fails(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    refused(PrepareConfig(task="one_digit_sums", train_size=10, val_size=101), folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", ["chain_sum", "countdown", "simple_equations"])
def test_gym_rows_satisfy_the_tasks_own_scorer_after_the_file(tmp_path: Path, task: str) -> None:
    import reasoning_gym

    config = PrepareConfig(task=task, train_size=6, val_size=3, seed=4)
    prepared = prepare(config, str(tmp_path / "out"))
    scorer = reasoning_gym.get_score_answer_fn(task)
    rows = read_rows([prepared.train]) + read_rows([str(prepared.val)])
    assert len({row.messages[0]["content"] for row in rows}) > 3
    for row in rows:
        entry = json.loads(row.extra_info["entry"])
        assert row.data_source == f"reasoning_gym/{task}"
        assert row.messages[0]["content"] == entry["question"]
        assert scorer(row.ground_truth, entry) == 1.0
        assert scorer("certainly not", entry) < 1.0


def test_gym_settings_reach_the_task_and_the_verifier(tmp_path: Path) -> None:
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    config = PrepareConfig(
        task="chain_sum", train_size=20, config=settings, data_source="reasoning_gym_lenient/chain_sum"
    )
    rows = read_rows([prepare(config, str(tmp_path / "out")).train])
    for row in rows:
        assert json.loads(row.extra_info["config"]) == settings
        assert row.data_source == "reasoning_gym_lenient/chain_sum"
        left, operator, right = row.messages[0]["content"].split(":")[1].removesuffix("=").split()
        assert int(row.ground_truth) == (int(left) + int(right) if operator == "+" else int(left) - int(right))


def test_gym_rows_depend_on_the_seed_and_nothing_else() -> None:
    config = PrepareConfig(task="chain_sum", train_size=5, val_size=2, seed=3)
    assert rows_of(config) == rows_of(config)
    assert rows_of(config) != rows_of(PrepareConfig(**{**vars(config), "seed": 4}))


def test_tasks_without_an_answer_keep_their_entry() -> None:
    train, _ = rows_of(PrepareConfig(task="propositional_logic", train_size=2))
    assert train[0]["reward_model"]["ground_truth"] is None
    assert "premises" in json.loads(train[0]["extra_info"]["entry"])["metadata"]


def lines(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "source.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_is_split_without_overlap(tmp_path: Path) -> None:
    file = lines(tmp_path, *({"q": f"{a}*2?", "a": a * 2} for a in range(10)))
    config = PrepareConfig(
        file=file, data_source="mine", train_size=7, val_size=3, config={"question_key": "q", "answer_key": "a"}
    )
    prepared = prepare(config, str(tmp_path / "out"))
    train, val = read_rows([prepared.train]), read_rows([str(prepared.val)])
    asked = [row.messages[0]["content"] for row in [*train, *val]]
    assert sorted(asked) == [f"{a}*2?" for a in range(10)]
    assert asked != sorted(asked)
    for row in [*train, *val]:
        assert int(row.ground_truth) == 2 * int(row.messages[0]["content"][0])
        assert row.data_source == "mine"


def test_a_changed_source_file_is_built_anew(tmp_path: Path) -> None:
    config = PrepareConfig(file=lines(tmp_path, {"question": "a", "answer": "b"}), data_source="mine", train_size=1)
    first = prepare(config, str(tmp_path / "out"))
    lines(tmp_path, {"question": "a", "answer": "c"})
    assert prepare(config, str(tmp_path / "out")).sha256 != first.sha256
    assert pq.read_table(first.train).to_pylist()[0]["reward_model"]["ground_truth"] == "c"


def test_bad_files_are_told(tmp_path: Path) -> None:
    def config(**changes: Any) -> PrepareConfig:
        return PrepareConfig(**{"file": file, "data_source": "s", "train_size": 2, **changes})

    file = lines(tmp_path, {"question": "a", "answer": "b"}, {"question": "a", "answer": "b"})
    assert "has 1 distinct questions; data.prepare.train_size + val_size ask for 2" in refused(config())
    file = lines(tmp_path, {"question": "a", "answer": "b"}, {"question": "a", "answer": "c"})
    assert "row 1, column question: the question is there already, with another answer" in refused(config())
    file = lines(tmp_path, {"question": "a"})
    assert "source.jsonl, row 0, column answer: is missing" in refused(config())
    file = lines(tmp_path, {"question": " ", "answer": "b"})
    assert "source.jsonl, row 0, column question: is empty" in refused(config())
    assert "no such file" in refused(config(file=str(tmp_path / "none.jsonl")))
    assert "a file has no setting 'x'; it has question_key and answer_key" in refused(config(config={"x": 1}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PrepareConfig(train_size=1), "name a task (data.prepare.task) or a file (data.prepare.file)"),
        (PrepareConfig(task="one_digit_sums"), "data.prepare.train_size: at least one training row must be built"),
        (PrepareConfig(task="one_digit_sum", train_size=1), "has no task 'one_digit_sum'; did you mean one_digit_sums"),
        (PrepareConfig(task="zzzz", train_size=1), "reasoning-gym has no task 'zzzz'; it has "),
        (
            PrepareConfig(task="one_digit_sums", train_size=1, val_size=6, config={"holdout": 5}),
            "one_digit_sums has 5 pairs to validate on, not 6",
        ),
        (PrepareConfig(task="one_digit_sums", train_size=1, config={"holdout": 100}), "from 0 to 99, got 100"),
        (
            PrepareConfig(task="one_digit_sums", train_size=1, config={"hold": 1}),
            "has no setting 'hold'; it has holdout",
        ),
        (PrepareConfig(task="chain_sum", train_size=1, config={"nope": 1}), "task chain_sum refuses {'nope': 1}: "),
        (
            PrepareConfig(task="chain_sum", train_size=1, config={"min_terms": 9, "max_terms": 2}),
            "task chain_sum refuses",
        ),
        (
            PrepareConfig(task="chain_sum", train_size=1, config={"seed": 2}),
            "data.prepare.config.seed: use data.prepare.seed",
        ),
    ],
)
def test_bad_settings_are_told(config: PrepareConfig, message: str, tmp_path: Path) -> None:
    assert message in refused(config, tmp_path / "out")

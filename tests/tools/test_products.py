"""The calculator task: rows, what earns its reward, and what a warm start is shown."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verl_core.config import RunConfig, resolve
from verl_core.config.schema import PrepareConfig, RewardConfig
from verl_core.data.chat import with_tools
from verl_core.data.prepare import prepare, rows_of
from verl_core.data.row import Columns, DatasetRow, checked_row
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.reward.registry import reward_for
from verl_core.tools.calculator import Calculator
from verl_core.tools.interface import ToolCall
from verl_core.tools.parsers import format_called
from verl_core.trainer.assets import policy_folder
from verl_core.warm_start.examples import IGNORED, demonstrations_of, examples_of, pad
from verl_core.warm_start.recipe import _curriculum, recipe_of
from verl_core.warm_start.tokenizer import make_tokenizer

INNER = make_tokenizer()


def recipe(*overrides: str) -> RunConfig:
    small = ["data.prepare.train_size=40", "data.prepare.val_size=8", *overrides]
    return resolve("configs/tool_agent.yaml", small).config


def rows() -> list[DatasetRow]:
    train, _ = rows_of(recipe().data.prepare)
    return [checked_row(record, place, f"row {place}", Columns()) for place, record in enumerate(train)]


def test_rows_are_right_and_no_pair_is_in_both_splits(tmp_path: Path) -> None:
    train, val = rows_of(PrepareConfig(task="calculator", train_size=8000, val_size=100, seed=3))
    questions = [row["prompt"][-1]["content"] for row in (*train, *val)]
    assert len(set(questions)) == 8100
    for row in (*train[:200], *val):
        entry = json.loads(row["extra_info"]["entry"])
        a, b = map(int, row["prompt"][-1]["content"].removesuffix("=").split("*"))
        assert row["reward_model"]["ground_truth"] == entry["result"] == str(a * b)
        assert asyncio.run(Calculator().call(entry["call"]["arguments"])) == entry["result"]
    with pytest.raises(DataError, match="has 8100 pairs"):
        rows_of(PrepareConfig(task="calculator", train_size=8000, val_size=101))
    with pytest.raises(DataError, match="no setting 'digits'"):
        prepare(PrepareConfig(task="calculator", train_size=1, config={"digits": 3}), str(tmp_path))


@pytest.mark.parametrize(
    ("session", "score", "called"),
    [
        ({"last_turn": "1776", "calls": [{"status": "ok"}]}, 1.0, 1.0),
        ({"last_turn": "1776", "calls": []}, 1.0, 0.0),
        ({"last_turn": "1777", "calls": [{"status": "ok"}]}, 0.0, 1.0),  # the tool's own 1776 earns nothing
        ({"last_turn": "1776", "calls": [{"status": "raised"}]}, 1.0, 0.0),
        ({"last_turn": "is 1776", "calls": []}, 0.0, 0.0),
    ],
)
def test_the_last_turn_earns_the_reward(session: dict[str, Any], score: float, called: float) -> None:
    verify = reward_for("calculator", RewardConfig())
    assert verify("calculator", "call 1776", "1776", {"multi_turn": session}) == {"score": score, "called": called}
    assert verify("calculator", "1776", "1776", {}) == {"score": 1.0, "called": 0.0}


def test_a_demonstration_is_a_session_and_what_the_tool_says_is_not_taught() -> None:
    tokenizer = with_tools(recipe(), ChatTokenizer(INNER, "tiny"))
    row = replace(rows()[0], messages=[{"role": "user", "content": "37*48="}], ground_truth="1776")
    call = ToolCall("calc", {"e": "37*48"})
    row.extra_info["entry"] = json.dumps({"call": {"name": "calc", "arguments": call.arguments}, "result": "1776"})
    (shown,) = demonstrations_of([row, row], tokenizer, format_called("json"))
    assert INNER.decode(shown.prompt_ids) == "<|system|>calc(e)<|end|><|user|>37*48=<|end|><|assistant|>"
    asks = '{"name":"calc","arguments":{"e":"37*48"}}'
    told = "<|tool|>1776<|end|><|assistant|>"
    assert INNER.decode(shown.answer_ids) == f"{asks}<|end|>{told}1776<|end|>"
    batch = pad([shown], INNER.pad_token_id)
    taught = batch.labels[0][batch.labels[0] != IGNORED]
    assert INNER.decode(taught.tolist()) == f"{asks}<|end|>1776<|end|>"
    for at, label in enumerate(batch.labels[0].tolist()):
        if label != IGNORED:
            assert label == batch.input_ids[0, at + 1]
    with pytest.raises(DataError, match="shows no call"):
        demonstrations_of([replace(row, extra_info={})], tokenizer, format_called("json"))


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_a_share_of_what_is_taught_shows_calls(share: float) -> None:
    config = recipe(f"warm_start.tool_share={share}", "warm_start.task_share=0.5")
    tokenizer = with_tools(config, ChatTokenizer(INNER, "tiny"))
    judged, taught = _curriculum(config, tokenizer)
    assert len({example.prompt_ids for example in taught}) == len(taught) == 20
    assert sum(example.told != (0, 0) for example in taught) == 20 * share
    assert len(judged) == 48
    assert all(example.told != (0, 0) for example in judged)
    plain = {example.prompt_ids: example.answer_ids for example in examples_of(rows(), tokenizer)}
    by_heart = [example for example in taught if example.told == (0, 0)]
    assert all(plain[example.prompt_ids] == example.answer_ids for example in by_heart)


def test_tools_are_part_of_what_a_policy_depends_on(tmp_path: Path) -> None:
    def made(*overrides: str) -> tuple[str, str]:
        config = recipe(f"trainer.default_local_dir={tmp_path}", *overrides)
        return json.dumps(recipe_of(config)), policy_folder(config)

    turns = "actor_rollout_ref.rollout.multi_turn"
    hermes = made(f"{turns}.format=hermes")
    echo = made(f"{turns}.tools=[tests.tools.tool_cases.Echo]")
    whole = [made(), hermes, echo, made("warm_start.tool_share=0.4")]
    assert len({text for text, _ in whole}) == len({folder for _, folder in whole}) == 4
    plain = resolve("configs/quickstart.yaml", [f"trainer.default_local_dir={tmp_path}"]).config
    assert "tool_share" not in recipe_of(plain)

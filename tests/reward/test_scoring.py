from __future__ import annotations

import importlib.util
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.reward.interface import Sample
from verl_core.reward.scoring import score_sample
from verl_core.trajectory import Reward


def scored(result: Any) -> Reward:
    def function(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return score_sample(function, Sample("u_0_0", "s", "x", None, {}))


@pytest.mark.parametrize(
    ("result", "score"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (np.float32(0.25), 0.25),
        (np.int64(-2), -2.0),
        (np.bool_(True), 1.0),
        (Fraction(1, 4), 0.25),
        ({"score": -1}, -1.0),
    ],
)
def test_numbers_of_every_kind(result: Any, score: float) -> None:
    reward = scored(result)
    assert (reward.key, reward.score, reward.status, reward.reason) == ("u_0_0", score, "ok", "")
    assert type(reward.score) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, 10**400, np.float32(np.nan)])
def test_what_float32_cannot_hold_is_quarantined(value: float) -> None:
    reward = scored({"score": value, "part": 1})
    assert (reward.status, reward.score, reward.components) == ("not_finite", 0.0, {"part": 1})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "NoneType"),
        ("1.0", "str"),
        ([1.0], "list"),
        (1j, "complex"),
        (Decimal("1"), "Decimal"),
        ({"score": None}, "NoneType"),
        ({"acc": 1, "b": 2}, "no 'score', only acc, b"),
        ({}, "no 'score', only nothing"),
    ],
)
def test_wrong_types_are_quarantined(result: Any, said: str) -> None:
    reward = scored(result)
    assert (reward.status, reward.score) == ("bad_type", 0.0)
    assert said in reward.reason


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError("no"), RecursionError("no"), SystemExit("no")])
def test_whatever_is_raised_is_quarantined(error: BaseException) -> None:
    reward = scored(error)
    assert (reward.status, reward.score, reward.reason) == ("raised", 0.0, f"{type(error).__name__}: no")


def test_ctrl_c_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        scored(KeyboardInterrupt())


def test_a_reason_stays_readable() -> None:
    assert len(scored(ValueError("x" * 10_000)).reason) == 500


def test_components_are_json_or_their_printed_form() -> None:
    given = {"score": 1, "n": np.int32(3), "text": "7", "list": [1, 2], "nan": math.nan, "set": {1}, 5: None}
    assert scored(given).components == {"n": 3, "text": "7", "list": [1, 2], "nan": "nan", "set": "{1}", "5": None}


def test_the_function_is_called_by_the_names_of_the_contract() -> None:
    seen: dict[str, Any] = {}

    def function(**given: Any) -> float:
        seen.update(given)
        return 0.0

    score_sample(function, Sample("k", "src", "text", {"a": 1}, {"b": 2}))
    assert seen == {"data_source": "src", "solution_str": "text", "ground_truth": {"a": 1}, "extra_info": {"b": 2}}


def test_user_module_of_these_tests_does_what_it_says() -> None:
    path = Path(__file__).with_name("user_rewards.py")
    spec = importlib.util.spec_from_file_location("user_rewards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reward = score_sample(module.compute_score, Sample("k", "s", "abc", None, {}))
    assert (reward.score, reward.status, reward.components["acc"]) == (3.0, "ok", True)

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from verl_core.config.schema.reward import RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.registry import reward_for
from verl_core.reward.verifiers import answers


def score(source: str, solution: str, truth: Any, **extra: Any) -> float:
    result = reward_for(source, RewardConfig())(source, solution, truth, extra)
    return result["score"] if isinstance(result, dict) else result


@pytest.mark.parametrize(
    ("solution", "right"),
    [("7", 1), ("07", 0), (" 7", 0), ("7\n", 0), ("7.", 0), ("77", 0), ("", 0), ("=7", 0), ("8", 0)],
)
def test_one_digit_sums_are_strict(solution: str, right: int) -> None:
    assert score("one_digit_sums", solution, "7") == right
    assert score("one_digit_sums", solution, 7) == right


# Ground truth, response, equal? The equalities are plain arithmetic.
MATHS = [
    ("72", "The answer is 72.", 1),
    ("72", r"First 71, then \boxed{72}", 1),
    ("72", r"First 72, then \boxed{71}", 0),
    ("#### 72", "#### 72", 1),
    ("1000", "It costs $1,000", 1),
    ("0.75", r"\boxed{\frac{3}{4}}", 1),
    (r"\frac{3}{4}", "0.75", 1),
    (r"\sqrt{8}", r"$2\sqrt{2}$", 1),
    ("x^2+1", "$1+x^2$", 1),
    ("x^2+1", "$x^2-1$", 0),
    ("5", "I do not know", 0),
    ("5", "", 0),
]


@pytest.mark.parametrize(("truth", "solution", "right"), MATHS)
def test_maths(truth: str, solution: str, right: int) -> None:
    assert score("math_verify/any", solution, truth) == right


def test_maths_off_the_main_thread() -> None:
    """math-verify's own time-outs raise there."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(score("gsm8k", "The answer is 72.", "72")))
    thread.start()
    thread.join(60)
    assert found == [1.0]


def test_a_ground_truth_that_is_no_expression_is_the_rows_fault() -> None:
    with pytest.raises(RewardError, match="ground truth '' is not"):
        score("gsm8k", "5", "")


@pytest.mark.parametrize("task", ["chain_sum", "countdown", "spell_backward", "decimal_arithmetic"])
def test_gym_entries_score_their_own_answer_and_survive_json(task: str) -> None:
    for entry in reasoning_gym.create_dataset(task, size=3, seed=7):
        truth = entry["answer"]
        for form in (entry, json.dumps(entry, default=str)):
            assert score(f"reasoning_gym/{task}", truth, truth, entry=form) == 1.0
            assert score(f"reasoning_gym/{task}", f"so <answer>{truth}</answer> it is", truth, entry=form) == 1.0
            assert score(f"reasoning_gym/{task}", "nonsense", truth, entry=form) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(DATASETS) - {"composite"}))  # composite is made of the others
def test_every_gym_task_scores_its_stored_entry_as_the_fresh_one(task: str) -> None:
    dataset = reasoning_gym.create_dataset(task, size=1, seed=3)
    entry = dataset[0]
    stored = json.dumps({name: entry[name] for name in ("question", "answer", "metadata")})
    truth = entry["answer"] or ""
    assert score(f"reasoning_gym/{task}", truth, truth, entry=stored) == dataset.score_answer(truth, entry)
    if task != "game_of_life_halting":  # its scorer takes whatever is not "True" for "False"
        assert score(f"reasoning_gym/{task}", "nonsense", truth, entry=stored) < 0.5


def test_an_answer_that_the_packages_scorer_cannot_read_is_wrong_not_an_error() -> None:
    entry = {"question": "", "answer": "2 × 3", "metadata": {"number": 6, "factors": [2, 3]}}
    source = "reasoning_gym/prime_factorization"
    assert score(source, "3 × 2", "2 × 3", entry=entry) == 1.0
    assert score(source, "two times three", "2 × 3", entry=entry) == 0.0
    with pytest.raises(ValueError, match="invalid literal"):  # the row is at fault
        score(source, "2 × 3", "2 × 3", entry={**entry, "answer": "two times three"})


def test_gym_boards_survive_json() -> None:
    entry = {"question": "", "answer": "1 2", "metadata": {"output": [[1, 2]]}}
    assert score("reasoning_gym/arc_agi", "1 2", "1 2", entry=json.dumps(entry)) == 1.0
    assert score("reasoning_gym/arc_agi", "1 3", "1 2", entry=json.dumps(entry)) < 1.0


def test_gym_takes_the_tasks_settings() -> None:
    """decimal_arithmetic allows an error of one unit in the last of `max_num_decimal_places`: 0.1 with one place."""
    entry = {"question": "", "answer": "2.50", "metadata": {}}
    source = "reasoning_gym/decimal_arithmetic"
    assert (
        score(source, "2.55", "2.50", entry=entry, config={"min_num_decimal_places": 1, "max_num_decimal_places": 1})
        == 1
    )
    assert score(source, "2.55", "2.50", entry=entry, config='{"max_num_decimal_places": 3}') == 0


def test_strict_and_lenient_gym_differ_on_chatter() -> None:
    entry = {"question": "2 + 3 =", "answer": "5", "metadata": {}}
    chat = "2 + 3 = 5"
    assert score("reasoning_gym/chain_sum", chat, "5", entry=entry) == pytest.approx(
        1 / 9
    )  # the package's partial credit
    assert score("reasoning_gym_lenient/chain_sum", chat, "5", entry=entry) == 1.0
    assert score("reasoning_gym_lenient/chain_sum", "2 + 3 = 6", "5", entry=entry) == 0.0
    assert score("reasoning_gym_lenient/spell_backward", "Sure!\n\ncba\n", "cba") == 1.0
    assert score("reasoning_gym_lenient/chain_sum", "", "5", entry=entry) == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2+3=5", "5"),
        ("it is -4.", "-4"),
        ("10-4", "4"),
        ("1,234.50 or so", "1234.50"),
        ("3 apples, then 7!", "7"),
        ("none", None),
        ("", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert answers.last_number(text) == number


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} then \boxed{broken", "3"),
        (r"\boxed{", None),
        ("plain", None),
    ],
)
def test_boxed(text: str, inside: str | None) -> None:
    assert answers.boxed(text) == inside


def test_tags_and_lines() -> None:
    assert answers.tagged("<answer>1</answer> no, <answer> 2\n</answer>") == "2"
    assert answers.tagged("<answer>1") is None
    assert answers.last_line("a\n b \n\n") == "b"
    assert answers.last_line(" \n") is None
    assert answers.is_number(" -3.5 ")
    assert not answers.is_number("3 4")

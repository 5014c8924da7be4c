"""`reasoning_gym/<task>`: the package's own scorer of the task, given the dataset entry the prompt was made from.

Row contract: extra_info["entry"] is the entry (question, answer, metadata) as a dict or as JSON text;
extra_info["config"], if there, holds the task's settings in the same forms (a few scorers use them). ground_truth
alone is enough for the tasks that compare with one right answer.

`reasoning_gym_lenient/<task>` scores the answer found inside a chatty response, so that a small chat model does not
start at 0.
"""

from __future__ import annotations

import difflib
import functools
import json
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from verl_core.errors import RewardError
from verl_core.reward.registry import register_reward
from verl_core.reward.verifiers import answers

_COMPARE_TUPLES = {"arc_agi", "rearc"}  # their scorers compare boards of tuples, which JSON turns into lists


def check_task(data_source: str) -> None:
    """Raise RewardError unless reasoning-gym has the task after the slash."""
    task = data_source.split("/", 1)[1]
    if task not in DATASETS:
        raise RewardError(f"reasoning-gym has no task {task!r} (data_source {data_source!r}); {_tasks(task)}")


@register_reward("reasoning_gym/", check=check_task)
def score_gym(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """Score of the text in the last `<answer>` tag, or of the whole response when there is none."""
    answer = answers.tagged(solution_str)
    return _score(data_source, solution_str.strip() if answer is None else answer, ground_truth, extra_info)


@register_reward("reasoning_gym_lenient/", check=check_task)
def score_gym_lenient(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> dict[str, Any]:
    r"""Score of the `<answer>` tag, else of `\boxed{}`, else of the last number (when a number is right), else of the
    last line. The text that was scored comes back as component `answer`."""
    wants_number = answers.is_number(str(_entry(ground_truth, extra_info)["answer"]))
    finders = (answers.tagged, answers.boxed, answers.last_number if wants_number else answers.last_line)
    answer = next((text for find in finders if (text := find(solution_str)) is not None), "")
    return {"score": _score(data_source, answer, ground_truth, extra_info), "answer": answer}


def _score(data_source: str, answer: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    settings = _decoded(extra_info.get("config") or {})
    task = data_source.split("/", 1)[1]
    dataset = _dataset(task, json.dumps(settings, sort_keys=True))
    entry = _entry(ground_truth, extra_info, task)
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # noqa: BLE001 - some of the package's scorers raise whatever comes on an answer they cannot read
        dataset.score_answer(entry["answer"], entry)  # raises as well if it is not the answer that is at fault
        return 0.0


def _entry(ground_truth: Any, extra_info: dict[str, Any], task: str = "") -> dict[str, Any]:
    given = extra_info.get("entry")
    entry = {"question": "", "answer": ground_truth, "metadata": {}} if given is None else _decoded(given)
    if task in _COMPARE_TUPLES:
        entry = {**entry, "metadata": {name: _tuples(value) for name, value in entry["metadata"].items()}}
    return entry


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _decoded(value: Any) -> dict[str, Any]:
    decoded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(decoded, dict):
        raise RewardError(f"extra_info entry and config must be objects, got {type(decoded).__name__}")
    return decoded


@functools.cache
def _dataset(task: str, settings: str) -> Any:
    """The task's dataset object, whose `score_answer` is the verifier. It generates nothing until indexed."""
    return create_dataset(task, **json.loads(settings))


def _tasks(task: str) -> str:
    near = difflib.get_close_matches(task, DATASETS, n=3)
    return f"did you mean {', '.join(near)}?" if near else f"it has: {', '.join(sorted(DATASETS))}"

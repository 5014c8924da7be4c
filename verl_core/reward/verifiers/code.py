"""Programs (`code`, `code_fraction`, `apps`, ...): the response's code is run against test cases in a sandbox.

Ground truth, as an object or its JSON text:

    {"inputs": [text, ...], "outputs": [text, ...]}       the program reads stdin and prints; compared line by line
                                                          without trailing space
    {"asserts": ["assert f(1) == 2", ...], "setup": ""}   each is run after setup and the program, in its own process

The code is the last fenced block of the response, or all of it without one. `code_fraction` gives the share of tests
that pass; every other source 1.0 or 0.0, and stops at the first that fails. A program over its limits fails the test.
Parts: `passed`, `tests`, `failure` (why the first one failed) and `isolated` (whether the kernel gave namespaces).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

from verl_core.config.schema.reward import RewardConfig, SandboxConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import RewardFunction
from verl_core.reward.registry import code_sources, register_reward
from verl_core.reward.sandbox.run import Outcome, run_program

_FENCED = re.compile(r"```[a-zA-Z0-9_+-]*[ \t]*\n(.*?)```", re.DOTALL)
_SPARE_S = 1.0
_log = logging.getLogger(__name__)
Test = Callable[[], tuple[bool, Outcome]]


def bound(config: RewardConfig) -> RewardFunction:
    """The verifier under the limits of a run.

    Raises:
        RewardError: `require_isolation`, and the kernel gives none; or a program that never ends would be quarantined
            instead of failing.
    """
    sandbox, timeout_s = config.sandbox, config.timeout_s
    if sandbox.wall_s + _SPARE_S > timeout_s:
        raise RewardError(
            f"reward.sandbox.wall_s={sandbox.wall_s:g} must be less than reward.timeout_s={timeout_s:g} by "
            f"{_SPARE_S:g} s or more, for code that never ends is wrong and must not be quarantined; change one of them"
        )
    _check_isolation(sandbox.require_isolation)

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
    ) -> dict[str, Any]:
        return graded(data_source, solution_str, ground_truth, sandbox, timeout_s)

    return compute_score


@lru_cache(maxsize=2)
def _check_isolation(is_required: bool) -> None:
    tried = run_program("", "", SandboxConfig(wall_s=20.0))
    if tried.isolated:
        return
    told = f"code is run without namespaces of its own: it has the network, and only resource limits ({tried.why_not})"
    if is_required:
        raise RewardError(f"{told}. Allow user namespaces, or set reward.sandbox.require_isolation=false")
    _log.warning("%s", told)


@register_reward(*code_sources(), bind=bound)
def score_code(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    """See the module; under the default limits. Raises as `graded`."""
    return graded(data_source, solution_str, ground_truth, SandboxConfig(), RewardConfig.timeout_s)


def graded(
    data_source: str, solution_str: str, ground_truth: Any, limits: SandboxConfig, timeout_s: float
) -> dict[str, Any]:
    """The reward of one response.

    Args:
        timeout_s: budget of all its tests.

    Raises:
        RewardError: the ground truth has no tests; the row is at fault, not the policy.
    """
    tests = list(tests_of(code_of(solution_str), ground_truth, limits))
    is_share = data_source.partition("/")[0] == "code_fraction"
    enough = time.monotonic() + timeout_s - limits.wall_s - _SPARE_S / 2  # a later test might not end in time
    passed, failure, isolated = 0, "", True
    for test in tests:
        if time.monotonic() > enough:
            failure = failure or "no time left for all tests"
            break
        is_right, outcome = test()
        passed, isolated = passed + is_right, isolated and outcome.isolated
        if not is_right:
            failure = failure or (outcome.detail or "another output")
            if not is_share:
                break
    share = passed / len(tests)
    score = share if is_share else float(passed == len(tests))
    return {"score": score, "passed": passed, "tests": len(tests), "failure": failure, "isolated": isolated}


def code_of(response: str) -> str:
    """The last fenced block, else the whole response."""
    found = _FENCED.findall(response)
    return str(found[-1]) if found else response


def tests_of(program: str, ground_truth: Any, limits: SandboxConfig) -> Iterator[Test]:
    """One callable per test case. Raises RewardError: there are none, or they do not fit together."""
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    if not isinstance(truth, dict):
        raise RewardError("the ground truth of code must be an object with inputs and outputs, or with asserts")
    inputs, outputs, asserts = (truth.get(key) or [] for key in ("inputs", "outputs", "asserts"))
    if len(inputs) != len(outputs) or not (inputs or asserts):
        raise RewardError(f"{len(inputs)} inputs, {len(outputs)} outputs and {len(asserts)} asserts make no test cases")
    for given, expected in zip(inputs, outputs, strict=True):
        yield partial(_prints, program, _joined(given), _joined(expected), limits)
    for line in asserts:
        yield partial(_holds, program, str(truth.get("setup", "")), str(line), limits)


def _prints(program: str, given: str, expected: str, limits: SandboxConfig) -> tuple[bool, Outcome]:
    outcome = run_program(program, given, limits)
    return outcome.ending == "ok" and _lines(outcome.stdout) == _lines(expected), outcome


def _holds(program: str, setup: str, line: str, limits: SandboxConfig) -> tuple[bool, Outcome]:
    """The program must get past the assertion: one that ends itself before prints no token."""
    token = secrets.token_hex(8)
    outcome = run_program(f"{setup}\n{program}\n{line}\nprint('\\n{token}')\n", "", limits)
    return outcome.ending == "ok" and _lines(outcome.stdout)[-1:] == [token], outcome


def _joined(text: Any) -> str:
    """Some data sets keep a test's lines as a list."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]

"""Sandboxed programs: every limit is met by a program that breaks it; test cases by stdin and by assertions."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.schema.reward import RewardConfig, SandboxConfig
from verl_core.errors import RewardError
from verl_core.reward.registry import reward_for
from verl_core.reward.sandbox.run import Outcome, run_program
from verl_core.reward.verifiers import code

LIMITS = SandboxConfig(cpu_s=2, wall_s=20.0, memory_mb=256, processes=8, file_mb=4)


def run(program: str, stdin: str = "", **limits: Any) -> Outcome:
    return run_program(program, stdin, replace(LIMITS, **limits))


@pytest.fixture(scope="module")
def isolated() -> bool:
    """Whether this kernel gives namespaces; resource limits are there in any case."""
    return run("").isolated


def test_a_program_reads_stdin_and_prints() -> None:
    outcome = run("print(input()[::-1]); print(sum(map(int, input().split())))", "abc\n1 2 3\n")
    assert (outcome.ending, outcome.stdout, outcome.detail) == ("ok", "cba\n6\n", "")


@pytest.mark.parametrize(
    ("program", "ending", "detail"),
    [
        ("raise SystemExit(3)", "failed", "exit code 3: "),
        ("print(1 / 0)", "failed", "exit code 1: ZeroDivisionError: division by zero"),
        ("import ctypes; ctypes.string_at(0)", "failed", "ended by SIGSEGV"),
        ("x = bytearray(2**30)", "memory", "more than 256 MiB"),
        ("f = open('x', 'wb')\nfor i in range(9): f.write(b'0' * 2**20)", "output", "File too large"),
        ("while True: print('x' * 100000)", "output", "File too large"),
    ],
)
def test_limits_end_programs(program: str, ending: str, detail: str) -> None:
    outcome = run(program)
    assert outcome.ending == ending, outcome
    assert detail in outcome.detail
    assert len(outcome.stdout) <= LIMITS.file_mb << 20


def test_time_ends_programs_that_work_and_programs_that_sleep() -> None:
    works = run("while True: pass", cpu_s=1)
    assert works.ending == "time"
    started = time.monotonic()
    sleeps = run("import time; time.sleep(60)", wall_s=1.5)
    assert (sleeps.ending, sleeps.detail) == ("time", "not done within 1.5 s")
    assert time.monotonic() - started < 10


def test_processes_are_counted_and_none_is_left(isolated: bool) -> None:
    bomb = run(
        "import os, time\nn = 0\ntry:\n  while n < 50:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\n"
        "except OSError: pass\nprint(n)"
    )
    assert bomb.ending == "ok"
    if isolated:
        assert int(bomb.stdout) <= LIMITS.processes
    stays = run("import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(60)\nprint('left')")
    assert stays.stdout == "left\n"
    time.sleep(0.2)
    left = [pid for pid in map(str, filter(str.isdigit, os.listdir("/proc"))) if _runs_a_program(pid)]
    assert not isolated or left == []


def _runs_a_program(pid: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"sandbox-" in command and b"program.py" in command


def test_an_isolated_program_has_no_network_and_no_root_and_cannot_fill_the_disk(isolated: bool) -> None:
    if not isolated:
        pytest.skip(f"this kernel gives no namespaces: {run('').why_not}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "unreachable" in outcome.detail
    assert run("import os; print(os.getuid() == 0, os.getpid())").stdout == "False 1\n"
    many = run("for i in range(20): open(f'f{i}', 'wb').write(b'0' * 2**20)")
    assert (many.ending, "No space left" in many.detail) == ("output", True)


SUMS = {"inputs": ["1 2\n", "10 -4"], "outputs": ["3", "6\n"]}
RIGHT = "Here it is:\n```python\na, b = map(int, input().split())\nprint(a + b, end=' \\n')\n```\nDone."
HALF = "print(3)"


def score(response: str, truth: Any, source: str = "code") -> dict[str, Any]:
    result = reward_for(source, RewardConfig(sandbox=LIMITS, timeout_s=60.0))(source, response, truth, {})
    assert isinstance(result, dict)
    return result


def test_test_cases_by_stdin() -> None:
    assert score(RIGHT, SUMS)["score"] == 1.0
    half = score(HALF, SUMS)
    assert (half["score"], half["passed"], half["tests"], half["failure"]) == (0.0, 1, 2, "another output")
    assert score(HALF, '{"inputs": ["1 2", "1 1"], "outputs": ["3", ["2"]]}', "code_fraction")["score"] == 0.5
    assert score("while True: pass", SUMS)["failure"].startswith(("2 s of CPU", "not done within"))


def test_test_cases_by_assertions() -> None:
    truth = {"setup": "import math", "asserts": ["assert f(2) == 4", "assert f(math.inf) == math.inf"]}
    assert score("def f(x): return x * x", truth, "code_fraction/mine")["passed"] == 2
    assert score("def f(x): return 2 * x", {"asserts": ["assert f(2) == 4", "assert f(3) == 9"]})["score"] == 0.0
    for escape in ("raise SystemExit(0)", "import os; os._exit(0)"):  # exit code 0, and no assertion was reached
        assert score(f"{escape}\ndef f(x): return 0", truth)["score"] == 0.0


def test_time_is_shared_among_the_tests_of_a_sample() -> None:
    slow = {"inputs": [""] * 20, "outputs": ["1"] * 20}
    started = time.monotonic()
    result = code.graded("code_fraction", "import time; time.sleep(0.5); print(1)", slow, LIMITS, 22.0)
    assert time.monotonic() - started < 22.0
    assert 1 <= result["passed"] < 20
    assert result["failure"] == "no time left for all tests"


def test_rows_without_tests_are_at_fault() -> None:
    for truth in ("{}", "[1]", {"inputs": ["1"], "outputs": []}):
        with pytest.raises(RewardError, match=r"test cases|must be an object"):
            score("print(1)", truth)


def test_limits_that_would_quarantine_what_is_wrong_are_refused() -> None:
    with pytest.raises(RewardError, match=r"reward.sandbox.wall_s=6 must be less than reward.timeout_s=6.5 by 1 s"):
        reward_for("code", RewardConfig(timeout_s=6.5))


def test_isolation_may_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Outcome("ok", "", "", isolated=False, why_not="unshare: Operation not permitted")
    monkeypatch.setattr(code, "run_program", lambda *_: shared)
    code._check_isolation.cache_clear()
    with pytest.raises(RewardError, match=r"without namespaces.*unshare: Operation not permitted"):
        code.bound(RewardConfig(sandbox=replace(LIMITS, require_isolation=True), timeout_s=60.0))
    code.bound(RewardConfig(sandbox=LIMITS, timeout_s=60.0))  # told in the log
    code._check_isolation.cache_clear()

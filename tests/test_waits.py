"""Nothing waits forever: every call that can block has a bound, or is listed here with what bounds it.

Read off the source, so that a new wait without a bound fails before anyone meets it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTLED = "asked only of what is done already"
INSIDE = "the awaitable stands inside a wait_for, or a wait with a timeout"

# file::function -> what bounds its wait
BOUNDED = {
    "tasks/siblings.py::wait": SETTLED,
    "tasks/siblings.py::_raise_failure": SETTLED,
    "verl_core/engine/rpc.py::collect": "after ray.wait said that the answer is there",
    "verl_core/reward/model_group.py::_all": "after ray.wait said that the answer is there",
    "verl_core/reward/model_group.py::_settle": "after ray.wait said that the answer is there",
    "verl_core/reward/remote.py::_score": "n samples that wait for the rate limit are through after n / rate seconds",
    "verl_core/reward/remote.py::_answer": "n samples that wait for the rate limit are through after n / rate seconds",
    "verl_core/rollout/agent_core.py::_outcome": SETTLED,
    "verl_core/rollout/agent_core.py::reset": "of cancelled tasks; the driver's call has a deadline",
    "verl_core/rollout/agent_core.py::close": "of cancelled tasks; the driver's call has a deadline",
    "verl_core/rollout/client.py::_answer": SETTLED,
    "verl_core/rollout/committer.py::_error_of": "each call of the store has a deadline of its own",
    "verl_core/rollout/committer.py::forget": "a few calls of the store, each with a deadline of its own",
    "verl_core/rollout/committer.py::close": "a few calls of the store, each with a deadline of its own",
    "verl_core/rollout/engines/staging.py::take": SETTLED,
    "verl_core/rollout/engines/staging.py::_let_go": SETTLED,
    "verl_core/rollout/engines/step_loop.py::_end": "the queue is not empty, and nobody else takes from it",
    "verl_core/rollout/engines/vllm_async.py::_control": SETTLED,
    "verl_core/rollout/gate.py::_wait": INSIDE,
    "verl_core/rollout/group_run.py::_outcome": SETTLED,
    "verl_core/rollout/outbox.py::take": INSIDE,
    "verl_core/rollout/pool.py::_wait_for_change": INSIDE,
    "verl_core/rollout/scripted.py::_until_awake": INSIDE,
    "verl_core/rollout/scripted.py::_or_cut": INSIDE,
    "verl_core/rollout/scripted.py::_pace": INSIDE,
    "verl_core/rollout/servers.py::_collect": "after ray.wait said that the answer is there",
    "verl_core/rollout/teachers/group.py::_take": "after ray.wait said that the answer is there",
    "verl_core/rollout/settled_pump.py::_collect": "after ray.wait said that the answer is there",
    "verl_core/trainer/actors.py::launch_actors": "each part ends within trainer.init_timeout_s",
    "verl_core/trainer/actors.py::actors": SETTLED,
    "verl_core/trainer/actors.py::abandon": "each part ends within trainer.init_timeout_s",
    "verl_core/trainer/actors.py::_begin": "each part ends within trainer.init_timeout_s",
    "verl_core/trainer/rollout_side.py::attach_or_launch": "each part ends within trainer.init_timeout_s",
    "verl_core/tools/calls.py::_within_its_time": SETTLED,
    "verl_core/weights/device.py::_all": SETTLED,
}
BLOCKING_ALONE = {"result", "join", "wait", "acquire", "communicate"}  # without any argument they wait for ever
BLOCKING_UNTIMED = {"as_completed", "wait"}  # of concurrent.futures, asyncio and ray: a first argument is no bound
PROCESSES = {"run", "check_output", "check_call", "call"}
QUEUES = ("queue", "commands", "inbox")


def is_unbounded(call: ast.Call) -> bool:
    """Whether the call may wait without end, going by its name and arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if {"timeout", "timeout_s"} & {keyword.arg for keyword in call.keywords}:
        return False
    if owner == "ray" and name in ("get", "wait"):
        return True
    if owner == "subprocess" and name in PROCESSES:
        return True
    if name == "get" and owner.lower().endswith(QUEUES):
        return not call.args and not call.keywords
    if name in BLOCKING_UNTIMED and owner in ("", "asyncio", "futures"):
        return True
    return name in BLOCKING_ALONE and not call.args and not call.keywords


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def unbounded() -> dict[str, list[str]]:
    """file::function -> its unbounded calls, of everything that ships; the innermost function owns a call."""
    found: dict[str, list[str]] = {}
    for folder in ("verl_core", "tasks", "workflows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            owner = {id(node): function.name for function in functions(tree) for node in ast.walk(function)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and is_unbounded(node):
                    place = f"{path.relative_to(ROOT)}::{owner.get(id(node), 'module')}"
                    found.setdefault(place, []).append(f"line {node.lineno}: {ast.unparse(node)[:80]}")
    return found


def test_every_wait_has_a_bound() -> None:
    found = unbounded()
    new = {place: calls for place, calls in found.items() if place not in BOUNDED}
    assert not new, f"give these a timeout and a Deadline with a name, or say in BOUNDED what bounds them: {new}"
    gone = sorted(set(BOUNDED) - set(found))
    assert not gone, f"nothing waits there any more; delete them from BOUNDED: {gone}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ray.get(reference)", True),
        ("ray.get(reference, timeout=3)", False),
        ("future.result()", True),
        ("future.result(timeout=3)", False),
        ("thread.join()", True),
        ("', '.join(words)", False),
        ("asyncio.wait([task])", True),
        ("asyncio.wait([task], timeout=1)", False),
        ("event.wait(3)", False),
        ("self._commands.get()", True),
        ("self._commands.get(timeout=1)", False),
        ("settings.get('a')", False),
        ("subprocess.run(['ls'])", True),
    ],
)
def test_the_rule_itself(code: str, expected: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert is_unbounded(call) == expected

"""Questions that are asked long before anybody looks: an answer that is there is taken, however late that is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from verl_core.config.schema import RunConfig
from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded, EngineDead
from verl_core.rollout import servers as servers_module
from verl_core.rollout.servers import Servers
from verl_core.rollout.teachers import group as teachers_module
from verl_core.rollout.teachers.group import Asked, Teachers, _Sent
from verl_core.rollout.teachers.interface import TeacherRequest

BUDGET_S = 0.05


class Gone(EngineDead, RayError):
    """What ray raises for a server whose engine died."""


class Answers:
    """Stands for ray: every reference has its answer, or none has."""

    def __init__(self, ready: bool) -> None:
        self.ready = ready

    def wait(self, references: Sequence[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return (list(references[:1]), list(references[1:])) if self.ready else ([], list(references))

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if isinstance(reference.answer, Exception):
            raise reference.answer
        return reference.answer


class Handle:
    """An actor whose methods all answer the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *_: Reference(self.answer))


class Reference:
    def __init__(self, answer: Any) -> None:
        self.answer = answer


def asked_servers(answer: Any) -> Servers:
    config = RunConfig()
    config.actor_rollout_ref.rollout.request_timeout_s = BUDGET_S
    servers = Servers(config, "nowhere", {f"server-{number}": Handle(answer) for number in range(3)})
    servers.begin_update(SimpleNamespace(version=7))  # type: ignore[arg-type]
    time.sleep(2 * BUDGET_S)
    return servers


def test_servers_that_loaded_weights_are_not_late_because_nobody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "ray", Answers(ready=True))
    servers = asked_servers(answer="loaded")
    servers.settle()
    assert servers.under_way is None


@pytest.mark.parametrize(("ready", "answer"), [(False, "loaded"), (True, Gone("gone"))])
def test_servers_that_did_not_are(monkeypatch: pytest.MonkeyPatch, ready: bool, answer: Any) -> None:
    monkeypatch.setattr(servers_module, "ray", Answers(ready))
    with pytest.raises(DeadlineExceeded, match="update_weights of 3 servers"):
        asked_servers(answer).settle()


@pytest.mark.parametrize("ready", [True, False])
def test_teachers_that_answered_while_the_trainer_computed_are_heard(
    monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    monkeypatch.setattr(teachers_module, "ray", Answers(ready))
    asked = Asked("step 1", 0, 8, Deadline("teachers", BUDGET_S))
    for key in "abc":
        chunk = (TeacherRequest(key, None, 1),)  # type: ignore[arg-type]
        asked.sent[Reference([f"scores of {key}"])] = _Sent("teacher-main-0", 0, chunk)
    time.sleep(2 * BUDGET_S)
    teachers = Teachers(RunConfig(), "nowhere", "cpu", lambda _: {})
    if ready:
        assert teachers.collect(asked) == {key: f"scores of {key}" for key in "abc"}
    else:
        with pytest.raises(DeadlineExceeded, match="teachers"):
            teachers.collect(asked)

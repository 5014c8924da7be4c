"""Which failures are tried again, and how they look in a pod and on a laptop."""

from __future__ import annotations

import pytest
from flytekit.exceptions.user import FlyteRecoverableException
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError

from tasks import retry
from tasks.retry import is_passing, retried
from verl_core.engine.rpc import RankFailure
from verl_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeadlineExceeded,
    EngineDead,
    GateError,
    ModelError,
    PolicyError,
    RecordError,
    ResourceError,
    RewardError,
    StoreError,
)

LOST = [
    ResourceError("r"),
    DeadlineExceeded("the cluster", 3.0, "gone"),
    EngineDead("e"),
    PolicyError("p"),
    RankFailure("f"),
    StoreError("s"),
    ConnectionError("Ray Client lost the head"),
    ActorDiedError(),
    ObjectLostError("00" * 28, None, ""),
    RayTaskError("score", "trace", ConnectionError("head is gone")),
]
FINAL = [
    ConfigError("c"),
    DataError("d"),
    ModelError("m"),
    RewardError("w"),
    CheckpointError("k"),
    RecordError("o"),
    GateError("g"),
    ValueError("a bug"),
    RayTaskError("score", "trace", ConfigError("c")),
    RayTaskError("score", "trace", ConfigError("c")).as_instanceof_cause(),
]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_pod_asks_for_another_attempt_with_the_message_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "is_local", lambda: False)
    with pytest.raises(FlyteRecoverableException) as told, retried():
        raise error
    assert told.value.__cause__ is error
    assert f"{type(error).__name__}: {error}" in str(told.value)


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_what_no_attempt_can_mend_stays_final(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_passing(error)
    monkeypatch.setattr(retry, "is_local", lambda: False)
    with pytest.raises(type(error)) as told, retried():
        raise error
    assert told.value is error


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_laptop_shows_the_failure_itself(error: Exception) -> None:
    with pytest.raises(type(error)) as told, retried():
        raise error
    assert told.value is error

"""Every row gets an outcome, whatever its worker does: real Ray actors, scripted ones instead of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import ray

from tests.reward.scripted_judge import DIE, DIE_ONCE, HANG, NAN, RAISE, STUCK, ScriptedJudge
from verl_core.config.schema import RewardModelConfig
from verl_core.engine.reward_worker import RewardModelFacts
from verl_core.errors import DeadlineExceeded
from verl_core.reward.model_group import Failure, Outcome, RewardModelGroup
from verl_core.trajectory import Int32

pytestmark = pytest.mark.usefixtures("ray_cluster")


@contextmanager
def judges(folder: Path, count: int, start_budget_s: float) -> Iterator[RewardModelGroup]:
    """Scripted workers; rows of two tokens go two by two."""
    settings = RewardModelConfig(model_path="scripted", max_token_len_per_gpu=4, timeout_s=5.0)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "lifetime": "detached"}
    made = {
        f"judge-{i}": ray.remote(ScriptedJudge)
        .options(name=f"judge-{i}", namespace=folder.name, **options)
        .remote(str(folder))
        for i in range(count)
    }
    found = RewardModelGroup(settings, folder.name, made, start_budget_s)
    found.facts = RewardModelFacts(vocabulary=1000, max_positions=3, pid=0, awake=True)
    ray.get([actor.facts.remote() for actor in made.values()], timeout=60)
    try:
        yield found
    finally:
        found.shutdown()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardModelGroup]:
    with judges(tmp_path_factory.mktemp("judges"), 2, start_budget_s=60.0) as found:
        yield found


def rows(*pairs: tuple[int, ...]) -> list[Int32]:
    return [np.asarray(pair, dtype=np.int32) for pair in pairs]


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Failure)
    return f"{outcome.status}: {outcome.reason}"


def test_order_is_kept_and_what_cannot_be_read_is_told(group: RewardModelGroup) -> None:
    many = rows(*((i, 1) for i in range(9)))
    assert group.score(many) == [float(i + 1) for i in range(9)]
    assert group.score([]) == []
    scores = group.score(rows((1, 2), (1, 2, 3, 4), (), (1, 2000), (5,)))
    assert (scores[0], scores[4]) == (3.0, 5.0)
    assert "raised: 4 tokens, the reward model reads 3" in reason(scores[1])
    assert "no token to score" in reason(scores[2])
    assert "token 2000, the reward model knows 1000" in reason(scores[3])


def test_a_batch_that_hangs_raises_or_kills_costs_itself_only(group: RewardModelGroup) -> None:
    asked = rows((HANG, 1), (HANG, 2), (DIE, 1), (DIE, 2), (RAISE, 1), (RAISE, 2), (1, 1), (2, 2))
    found = group.score(asked)
    assert found[6:] == [2.0, 4.0]
    for outcome in found[:2]:
        said = "timeout: no score within 5 s (reward.reward_model.timeout_s) for a batch of 2 rows in judge-"
        assert said in reason(outcome)
    assert all("raised: the reward model's worker died 2 times over its batch" in reason(one) for one in found[2:4])
    assert all("ValueError: no such expert" in reason(one) for one in found[4:6])
    assert group.score(rows((1, 1), (2, 2), (3, 3), (4, 4))) == [2.0, 4.0, 6.0, 8.0]  # all workers are back


def test_once_too_many_rows_failed_the_rest_is_not_tried(group: RewardModelGroup) -> None:
    """Batches of two rows: when the second one has failed, a third may be under way in the other worker."""
    found = [reason(outcome) for outcome in group.score(rows(*[(RAISE, 1)] * 42), 3)]
    told = "raised: not tried after 4 failures, the last: the reward model failed in judge-"
    tried = [one for one in found if not one.startswith(told)]
    assert len(tried) in (4, 6)
    assert all(one.endswith("ValueError: no such expert") for one in tried)
    fewer = group.score(rows((RAISE, 1), (RAISE, 2), (1, 1), (2, 2)), 2)
    assert fewer[2:] == [2.0, 4.0]


def test_a_worker_that_dies_once_costs_nothing(group: RewardModelGroup) -> None:
    assert group.score(rows((DIE_ONCE, 1), (DIE_ONCE, 2), (1, 1))) == [905.0, 906.0, 2.0]


def test_not_a_number_stays_with_its_row(group: RewardModelGroup) -> None:
    first, second = group.score(rows((NAN, 1), (1, 1)))
    assert isinstance(first, float)
    assert math.isnan(first)
    assert second == 2.0


def test_a_worker_that_does_not_come_back_ends_the_run_with_its_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    told = r"judge-0 to start again.*workers judge-0 \(starting again\) of"
    with (
        judges(tmp_path_factory.mktemp("alone"), 1, start_budget_s=1.0) as alone,
        pytest.raises(DeadlineExceeded, match=told),
    ):
        alone.score(rows((STUCK, 1), (1, 1)))


def test_workers_that_share_are_told_to_sleep_when_a_process_takes_them_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may have ended while they were awake, and the trainer wants its devices."""
    said: list[str] = []

    def every(self: RewardModelGroup, method: str, seconds: float) -> dict[str, RewardModelFacts]:
        said.append(method)
        return {name: RewardModelFacts(9, 0, 1, True) for name in self._actors}

    monkeypatch.setattr(RewardModelGroup, "_all", every)
    monkeypatch.setattr("verl_core.rollout.named_actor.attach_or_start", lambda *_: object())
    for own in (False, True):
        settings = RewardModelConfig(model_path="scripted", enable_resource_pool=own)
        RewardModelGroup.attach_or_launch(settings, "any", 2, lambda _: {}, "cpu", 5.0)
    assert said == ["facts", "sleep", "facts"]

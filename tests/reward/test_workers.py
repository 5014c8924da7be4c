"""The Scorer over real Ray actors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from verl_core.config.schema.reward import CustomRewardConfig, RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.interface import Sample
from verl_core.reward.workers import RewardWorkers

NAMESPACE = "verl-test-reward"
USER = CustomRewardConfig(str(Path(__file__).with_name("user_rewards.py")))
CONFIG = RewardConfig(num_workers=2, timeout_s=1.0, error_budget=0.5, custom_reward_function=USER)


def samples(*solutions: str) -> list[Sample]:
    return [Sample(f"k{i}", "any", solution, None, {}) for i, solution in enumerate(solutions)]


@pytest.fixture(scope="module")
def workers(ray_cluster: None) -> Iterator[RewardWorkers]:
    found = RewardWorkers.attach_or_launch(CONFIG, NAMESPACE, ["any"])
    yield found
    found.shutdown()


def test_order_and_scores_do_not_depend_on_the_spread(workers: RewardWorkers) -> None:
    batch = samples(*["x" * (i % 7) for i in range(301)])  # five chunks for two workers
    rewards = workers.score(batch)
    assert [reward.key for reward in rewards] == [sample.key for sample in batch]
    assert [reward.score for reward in rewards] == [float(i % 7) for i in range(301)]
    assert workers.score([]) == []


def test_a_hang_costs_one_sample(workers: RewardWorkers) -> None:
    orders = ["a"] * 20
    orders[3], orders[12] = "hang", "exit"
    rewards = workers.score(samples(*orders))
    assert {i: reward.status for i, reward in enumerate(rewards) if reward.quarantined} == {3: "timeout", 12: "raised"}


def test_over_budget_is_an_error_with_reasons(workers: RewardWorkers) -> None:
    with pytest.raises(
        RewardError, match=r"(?s)3 of 4 samples.*not_finite: 1, for example k1.*raised: 2, for example k0"
    ):
        workers.score(samples("raise", "nan", "raise", "a"))


def test_a_function_that_always_hangs_does_not_cost_its_time_out_for_every_sample(ray_cluster: None) -> None:
    config = RewardConfig(num_workers=1, timeout_s=0.3, error_budget=0.05, custom_reward_function=USER)
    lazy = RewardWorkers.attach_or_launch(config, f"{NAMESPACE}-hangs", ["any"])
    start = time.monotonic()
    with pytest.raises(RewardError, match=r"(?s)60 of 60 samples.*timeout: 60, for example k0: no score within"):
        lazy.score(samples(*["hang"] * 60))
    assert time.monotonic() - start < 15  # four time-outs and starts of the process; sixty would take 18 s and more
    lazy.shutdown()


def test_another_driver_attaches_to_the_same_actors(workers: RewardWorkers) -> None:
    again = RewardWorkers.attach_or_launch(CONFIG, NAMESPACE, ["any"])
    assert [actor for actor, _ in again.pids()] == [actor for actor, _ in workers.pids()]


def test_a_dead_actor_is_restarted_and_asked_again(workers: RewardWorkers) -> None:
    victim = workers.pids()[0][0]
    os.kill(victim, signal.SIGKILL)
    rewards = workers.score(samples(*["ab"] * 50))
    assert [reward.score for reward in rewards] == [2.0] * 50
    assert victim not in {actor for actor, _ in workers.pids()}


def test_256_samples_take_milliseconds(workers: RewardWorkers) -> None:
    """Measured 16 ms with one worker and 26 ms with two on a machine of two cores."""
    batch = samples(*["ab"] * 256)
    workers.score(batch)
    took = []
    for _ in range(7):
        start = time.perf_counter()
        workers.score(batch)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05


def test_other_settings_replace_the_actors(ray_cluster: None) -> None:
    namespace = f"{NAMESPACE}-settings"
    first = RewardWorkers.attach_or_launch(RewardConfig(), namespace, ["one_digit_sums"])
    old = first.pids()[0]
    second = RewardWorkers.attach_or_launch(RewardConfig(timeout_s=5.0), namespace, ["one_digit_sums"])
    assert second.pids()[0][0] != old[0]
    second.shutdown()
    assert survivors(old) == []


def survivors(pids: tuple[int, int]) -> list[int]:
    """Those of `pids` that still run after a few seconds."""
    end = time.monotonic() + 10
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
    return left


def test_a_function_that_cannot_be_loaded_leaves_no_actor(ray_cluster: None) -> None:
    namespace = f"{NAMESPACE}-unknown"
    with pytest.raises(RewardError, match="no reward function for data_source 'nothing'"):
        RewardWorkers.attach_or_launch(RewardConfig(), namespace, ["nothing"])
    assert not named(namespace)


def named(namespace: str) -> bool:
    """Whether reward-0 is still there after a few seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not [a for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == namespace]:
            return False
        time.sleep(0.05)
    return True


def test_workers_that_were_shut_down_say_so(ray_cluster: None) -> None:
    namespace = f"{NAMESPACE}-down"
    workers = RewardWorkers.attach_or_launch(RewardConfig(), namespace)
    workers.shutdown()
    workers.shutdown()
    with pytest.raises(RewardError, match="shut down"):
        workers.score(samples("a"))

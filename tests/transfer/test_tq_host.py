"""The store's processes: whose they are, and what happens when they die."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import ray

from tests.transfer.build import finished_of, prompt_of, uid_of
from verl_core.config.schema import BufferConfig
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.transfer.endpoint import Endpoint
from verl_core.transfer.host import CONTROLLER, StoreHost, unit_name
from verl_core.transfer.tq_store import TransferQueueStore

SPACE = "verl-test-transfer-mortal"
QUICK_S = 2.0


@ray.remote(num_cpus=0)
class Driver:
    """Stands for another process of the run."""

    def launch(self) -> Endpoint:
        return StoreHost.attach_or_launch(BufferConfig(call_timeout_s=10), timeout_s=120, namespace=SPACE).endpoint

    def finish(self, endpoint: Endpoint, ordinals: list[int]) -> None:
        store = TransferQueueStore.join(endpoint, call_timeout_s=20, listen=False)
        store.finish([finished_of(prompt_of(ordinal)) for ordinal in ordinals])
        store.close()


def test_another_process_joins_by_the_endpoint_and_wakes_the_sampler(
    tq_store: TransferQueueStore, store_host: StoreHost
) -> None:
    worker = Driver.remote()
    done = worker.finish.remote(store_host.endpoint, [1, 2])
    assert sorted(tq_store.wait(60)) == sorted([uid_of(1), uid_of(2)])
    ray.get(done, timeout=60)
    tags = tq_store.read_tags([uid_of(1), uid_of(2)])
    assert len(tq_store.fetch([tag.manifest for tag in tags.values()])) == 4
    ray.kill(worker)


def test_two_namespaces_are_two_stores_and_attaching_finds_the_running_one(store_host: StoreHost) -> None:
    again = StoreHost.attach_or_launch(BufferConfig(num_storage_units=7), timeout_s=5, namespace=store_host.namespace)
    assert again == store_host  # the running one, whatever size this process would have chosen
    assert len(again.endpoint.units) == 2


def fails_within(seconds: float, call: Any) -> DeadlineExceeded:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        call()
    assert time.monotonic() - started < seconds
    return caught.value


def kill(name: str) -> None:
    """Kill an actor and wait until its process is gone."""
    actor = ray.get_actor(name, namespace=SPACE)
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=30)
    ray.kill(actor)
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)


def launched_by_a_driver_that_died() -> Endpoint:
    driver = Driver.remote()
    endpoint: Endpoint = ray.get(driver.launch.remote(), timeout=150)
    ray.kill(driver)
    time.sleep(0.5)
    return endpoint


@pytest.mark.slow
def test_life_and_death(ray_cluster: None) -> None:
    """One story, for a start takes seconds: first its creator dies, then a unit, then the controller."""
    endpoint = launched_by_a_driver_that_died()
    store = TransferQueueStore.join(endpoint, call_timeout_s=QUICK_S)
    (tag,) = store.finish([finished_of(prompt_of(1))])
    assert len(store.fetch([tag.manifest])) == 2  # the store outlived its creator

    kill(unit_name(0))
    error = fails_within(QUICK_S + 3, lambda: store.fetch([tag.manifest]))
    assert error.name == "TransferQueue get_rows"
    assert tag.uid in error.state
    fails_within(QUICK_S + 3, lambda: store.finish([finished_of(prompt_of(2))]))
    assert set(store.tags()) == {tag.uid}  # the controller is fine, and no tag says that the second group finished

    kill(CONTROLLER)
    for call in (store.tags, lambda: store.read_tags([tag.uid]), lambda: store.fetch([tag.manifest])):
        assert "may be dead" in fails_within(QUICK_S + 3, call).state
    started = time.monotonic()
    store.wait(0.1)
    store.close()
    assert time.monotonic() - started < 10  # leaving a dead store does not hang either
    with pytest.raises(StoreError, match="no store answers"):
        TransferQueueStore.join(endpoint, call_timeout_s=QUICK_S)
    StoreHost.remove(SPACE)
    StoreHost.remove(SPACE)


@pytest.mark.slow
def test_a_store_with_a_dead_unit_is_replaced_under_a_new_epoch(ray_cluster: None) -> None:
    first = launched_by_a_driver_that_died()
    kill(unit_name(0))
    host = StoreHost.attach_or_launch(BufferConfig(call_timeout_s=10), timeout_s=120, namespace=SPACE)
    assert host.endpoint.epoch != first.epoch
    with pytest.raises(StoreError, match="no store answers"):
        TransferQueueStore.join(first, call_timeout_s=QUICK_S)
    store = TransferQueueStore.join(host.endpoint, call_timeout_s=10)
    store.finish([finished_of(prompt_of(1))])
    store.close()
    host.shutdown()
    for name in (CONTROLLER, unit_name(0)):
        with pytest.raises(ValueError, match="Failed to look up"):
            ray.get_actor(name, namespace=SPACE)


def test_a_start_that_takes_too_long_ends_with_a_picture(ray_cluster: None) -> None:
    space = f"{SPACE}-slow"
    with pytest.raises(DeadlineExceeded, match="the trajectory store to start") as caught:
        StoreHost.attach_or_launch(BufferConfig(), timeout_s=0.5, namespace=space)
    assert CONTROLLER in caught.value.state
    assert "live Ray nodes: 1" in caught.value.state
    leftovers = [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == space]
    assert leftovers == []  # nothing half-started stays behind


def test_without_ray_the_host_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(StoreError, match="call ray"):
        StoreHost.attach_or_launch(BufferConfig(), timeout_s=1)

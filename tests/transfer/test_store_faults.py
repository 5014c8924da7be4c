"""The store's processes die under a waiting replay buffer. The bounds in seconds are those of docs/errors.md."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.transfer.build import finished_of, prompt_of, reissue
from tests.transfer.test_tq_host import kill
from tests.transfer.trainer_model import Disk, Journaled
from verl_core.config.schema import BufferConfig
from verl_core.errors import DeadlineExceeded, StoreError, VerlError
from verl_core.record.accounting import account
from verl_core.transfer.flight import Group
from verl_core.transfer.host import CONTROLLER, StoreHost, unit_name
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import Wait
from verl_core.transfer.tq_store import TransferQueueStore

SPACE = "verl-test-transfer-mortal"
CONFIG = BufferConfig(num_storage_units=2, call_timeout_s=10.0)  # a lease is 900 s, as users have it


def bound_of(fault: str) -> float:
    """What docs/errors.md promises, in seconds."""
    page = (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {fault}")]
    (seconds,) = re.findall(r"\| (\d+) s \|", row)
    return float(seconds)


@pytest.fixture
def mortal(ray_cluster: None) -> Iterator[TransferQueueStore]:
    StoreHost.remove(SPACE)
    host = StoreHost.attach_or_launch(CONFIG, timeout_s=240, namespace=SPACE)
    store = TransferQueueStore.join(host.endpoint, CONFIG.call_timeout_s)
    yield store
    store.close()
    StoreHost.remove(SPACE)


def raised_within(seconds: float, call: Callable[[], object]) -> VerlError:
    started = time.monotonic()
    with pytest.raises((StoreError, DeadlineExceeded)) as caught:
        call()
    assert time.monotonic() - started < seconds
    return caught.value


def test_a_storage_unit_dies_while_the_buffer_waits_and_the_run_is_taken_up_again(mortal: TransferQueueStore) -> None:
    disk, spool = Disk(), list[Group]()
    ledger = Journaled(disk)
    buffer = ReplayBuffer(mortal, CONFIG, lambda prompts: None, ledger, reissue, policy=Wait(4, 0))
    prompts = [prompt_of(ordinal) for ordinal in range(4)]
    buffer.submit(prompts)
    mortal.finish([finished_of(prompt, versions=(0,)) for prompt in prompts[:2]])
    seconds = bound_of("storage unit killed")
    killer = threading.Timer(3.0, kill, [unit_name(1)])
    killer.start()
    error = raised_within(3.0 + seconds, lambda: buffer.sample(4, 1, spool.extend))
    killer.join()
    assert "storage unit 1" in str(error)
    for call in (buffer.collect, lambda: buffer.wait_for(4, 1), lambda: buffer.sample(4, 1)):
        assert "storage unit 1" in str(raised_within(seconds, call))
    assert buffer.accounting().balanced
    assert [group.prompt.ordinal for group in spool] == [0, 1]

    host = StoreHost.attach_or_launch(CONFIG, timeout_s=240, namespace=SPACE)
    store = TransferQueueStore.join(host.endpoint, CONFIG.call_timeout_s)
    ledger.append("resumed", (), from_step=0, rolled_out=0)
    second = ReplayBuffer(store, CONFIG, lambda prompts: None, ledger, reissue, policy=Wait(4, 0))
    second.adopt(spool, step=1)
    second.submit(prompts[2:])
    store.finish([finished_of(prompt, versions=(0,)) for prompt in prompts[2:]])
    groups = second.sample(4, 1)
    assert [group.prompt.ordinal for group in groups] == [0, 1, 2, 3]
    second.clear(groups)
    uids = [group.prompt.uid for group in groups]
    ledger.append("trained", uids, base_uids=uids, step=1)
    accounts = account(disk.journal)
    assert (accounts.served, accounts.trained, accounts.in_flight, accounts.exact) == (4, 4, 0, True)
    store.close()


@pytest.mark.slow
def test_the_controller_dies_while_the_buffer_waits(mortal: TransferQueueStore) -> None:
    buffer = ReplayBuffer(mortal, CONFIG, lambda prompts: None, Journaled(Disk()), reissue)
    buffer.submit([prompt_of(0), prompt_of(1)])
    seconds = bound_of("store controller killed")
    killer = threading.Timer(3.0, kill, [CONTROLLER])
    killer.start()
    errors = [raised_within(3.0 + seconds, lambda: buffer.sample(2, 1))]
    killer.join()
    calls: list[Callable[[], object]] = [
        buffer.collect,
        lambda: buffer.sampleable(1),
        lambda: buffer.wait_for(2, 1),
        lambda: buffer.submit([prompt_of(2)]),
        lambda: buffer.abandon("the store is gone"),
    ]
    errors += [raised_within(seconds, call) for call in calls]
    for error in errors:
        assert re.search("controller at .* is dead|controller .*may be dead", str(error)), error
    assert buffer.accounting().balanced

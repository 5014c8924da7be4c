"""The doorbell: wakes at once, loses nothing that matters, never blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from verl_core.errors import StoreError
from verl_core.transfer.doorbell import Doorbell, Forwarder


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    made = Forwarder("127.0.0.1")
    yield made
    made.close()


def joined(forwarder: Forwarder, listen: bool) -> Doorbell:
    return Doorbell(forwarder.bell_in, forwarder.bell_out, listen)


def test_a_ring_wakes_every_listener_and_names_its_uids_once(forwarder: Forwarder) -> None:
    ears, other, finger = joined(forwarder, True), joined(forwarder, True), joined(forwarder, False)
    assert ears.answers(5)
    assert other.answers(5)
    timer = threading.Timer(0.2, lambda: [finger.ring(["a", "b"]), finger.ring(["b"])])
    timer.start()
    started = time.monotonic()
    heard: list[str] = []
    while len(heard) < 2:
        heard += ears.wait(10)
    assert sorted(set(heard)) == ["a", "b"]
    assert 0.1 < time.monotonic() - started < 5
    assert set(other.wait(10)) <= {"a", "b"}
    timer.join()
    for bell in (ears, other, finger):
        bell.close()


def test_waiting_in_vain_takes_the_time_it_was_given(forwarder: Forwarder) -> None:
    ears = joined(forwarder, True)
    started = time.monotonic()
    assert ears.wait(0.2) == []
    assert 0.15 < time.monotonic() - started < 2
    assert ears.wait(0.0) == []
    ears.close()


def test_ringing_into_the_void_does_not_block() -> None:
    gone = Forwarder("127.0.0.1")
    bell = joined(gone, True)
    gone.close()
    started = time.monotonic()
    for _ in range(1000):
        bell.ring(["a"])
    assert not bell.answers(0.2)
    bell.close()
    bell.close()
    assert time.monotonic() - started < 5


def test_a_bell_without_a_taker_reports_the_dropped_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_core.transfer.doorbell._QUEUE", 2)
    gone = Forwarder("127.0.0.1")
    bell = joined(gone, False)
    gone.close()
    assert not all(bell.ring([f"{number}"]) for number in range(10))
    bell.close()


def test_a_fork_is_told(forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch) -> None:
    bell = joined(forwarder, True)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(StoreError, match="fork"):
            bell.ring(["a"])
        bell.close()  # must not touch the parent's sockets
    assert bell.ring(["a"])
    bell.close()

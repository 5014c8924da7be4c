"""Holder and nodes find each other, and each notices when the other is gone."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tasks import rendezvous as module
from tasks.cluster import wait_for_stop
from tasks.rendezvous import Pulse, Rendezvous
from verl_core.errors import DeadlineExceeded
from verl_core.record.rundir import RunDir


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    monkeypatch.setattr("tasks.cluster._POLL_S", 0.02)
    return Rendezvous(RunDir(tmp_path / "run"), "execution")


def test_a_node_waits_for_the_address_and_gets_the_newest(meeting: Rendezvous) -> None:
    threading.Timer(0.2, meeting.publish, ["ray://first:10001"]).start()
    assert meeting.address(10) == "ray://first:10001"
    meeting.publish("ray://second:10001")  # the holder was retried: another cluster
    assert meeting.address(10) == "ray://second:10001"


def test_no_holder_is_an_error_that_says_so(meeting: Rendezvous) -> None:
    with pytest.raises(DeadlineExceeded, match=r"hold_cluster.*holder: never seen.*stop marker: False"):
        meeting.address(0.1)


def test_the_address_of_a_silent_holder_is_not_used(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting.publish("ray://dead:10001")
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    time.sleep(0.1)
    with pytest.raises(DeadlineExceeded, match=r"holder: 0 s ago"):
        meeting.address(0.1)


def test_two_executions_do_not_meet(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    Rendezvous(run, "one").stop()
    assert not Rendezvous(run, "two").stopped()


def test_the_holder_ends_with_the_stop_marker(meeting: Rendezvous) -> None:
    with Pulse(meeting, "driver", every_s=0.05):
        threading.Timer(0.2, meeting.stop).start()
        wait_for_stop(meeting, idle_s=10, longest_s=10)


def test_the_holder_gives_up_when_nobody_works(meeting: Rendezvous) -> None:
    with pytest.raises(DeadlineExceeded, match=r"a node that uses this cluster.*driver: never seen"):
        wait_for_stop(meeting, idle_s=0.2, longest_s=10)


def test_the_holder_gives_up_when_the_driver_died(meeting: Rendezvous) -> None:
    with Pulse(meeting, "driver", every_s=0.05):
        time.sleep(0.1)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"a node that uses this cluster"):
        wait_for_stop(meeting, idle_s=0.3, longest_s=10)
    assert time.monotonic() - started < 5


def test_the_holder_has_a_longest_time(meeting: Rendezvous) -> None:
    with Pulse(meeting, "driver", every_s=0.05), pytest.raises(DeadlineExceeded, match="the end of the run"):
        wait_for_stop(meeting, idle_s=10, longest_s=0.3)


def test_a_pulse_outlives_a_hiccup_of_the_storage(meeting: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[float] = []

    def flaky(side: str) -> None:
        beats.append(time.monotonic())
        if len(beats) == 2:
            raise OSError("storage is busy")

    monkeypatch.setattr(meeting, "beat", flaky)
    with Pulse(meeting, "holder", every_s=0.05):
        time.sleep(0.5)
    assert len(beats) >= 4

"""Servers and world against schedules worked out by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.simulate.devices import Request, Server, ServerSpeed
from benchmarks.simulate.world import World


def request(name: str, length: int, prompt: int = 0) -> Request:
    return Request((name, 0), prompt, length)


def run_alone(speed: ServerSpeed, requests: list[Request]) -> dict[str, float]:
    """When each request ends on one server."""
    world, ended = World(1, speed), {}

    def done(server: Server, gone: list[Request]) -> None:
        ended.update({one.key[0]: world.now for one in gone})

    world.on_done = done
    server = world.servers["server-0"]
    for one in requests:
        server.enter(one, 0.0)
    world.touch([server])
    world.until(lambda: len(ended) == len(requests), math.inf)
    return ended


def test_requests_share_a_server() -> None:
    # Two run: a token each t0 + 2 t1 = 2 s; a ends after 10 tokens at 20 s. b runs alone then, at 1.5 s a token, and
    # has 20 tokens to go: 20 + 30 = 50 s.
    ended = run_alone(ServerSpeed(t0=1.0, t1=0.5), [request("a", 10), request("b", 30)])
    assert ended == pytest.approx({"a": 20.0, "b": 50.0})


def test_the_time_of_a_phase_is_t0_longest_plus_t1_all() -> None:
    # The identity that the closed form rests on, for lengths 3, 5, 9 at t0 = 1, t1 = 0.25: 9 + 17 / 4 = 13.25.
    ended = run_alone(ServerSpeed(t0=1.0, t1=0.25), [request("a", 3), request("b", 5), request("c", 9)])
    assert max(ended.values()) == pytest.approx(13.25)


def test_requests_beyond_the_slots_wait_their_turn() -> None:
    # One slot: a (4 s), b (2 s), c (3 s), one after the other.
    ended = run_alone(ServerSpeed(t0=1.0, slots=1), [request("a", 4), request("b", 2), request("c", 3)])
    assert ended == pytest.approx({"a": 4.0, "b": 6.0, "c": 9.0})


def test_reading_stops_sampling() -> None:
    # 30 + 10 prompt tokens at 0.1 s: 4 s in which nobody gets a token; then 5 and 8 tokens at 1 s.
    ended = run_alone(ServerSpeed(t0=1.0, read_s=0.1), [request("a", 5, prompt=30), request("b", 8, prompt=10)])
    assert ended == pytest.approx({"a": 9.0, "b": 12.0})


def test_a_free_token_takes_no_time() -> None:
    assert run_alone(ServerSpeed(t0=1.0, free_tokens=1), [request("a", 5)]) == pytest.approx({"a": 4.0})


def test_a_cut_keeps_whole_tokens_and_both_versions() -> None:
    server = Server("s", ServerSpeed(t0=1.0))
    one = request("a", 10)
    server.enter(one, 0.0)
    running, queued = server.cut(3.7)  # three whole tokens; the fourth is lost
    assert (running, queued, one.done, one.segments) == ([one], [], 3, [(0, 3)])
    server.version = 1
    server.enter(one, 5.0)
    assert server.next_completion() == pytest.approx(12.0)  # seven to go
    assert server.completed(12.0) == [one]
    assert one.segments == [(0, 3), (1, 7)]
    assert server.tokens == 10
    assert server.busy_s == pytest.approx(3.7 + 7.0)


def test_a_server_that_stands_still_samples_nothing() -> None:
    server = Server("s", ServerSpeed(t0=1.0))
    server.enter(request("a", 4), 0.0)
    server.halt(True, 1.0)
    assert server.next_completion() == math.inf
    server.halt(False, 11.0)
    assert server.next_completion() == pytest.approx(14.0)


def test_cut_tells_who_ran_from_who_queued() -> None:
    server = Server("s", ServerSpeed(t0=1.0, slots=1))
    first, second = request("a", 9), request("b", 9)
    server.enter(first, 0.0)
    server.enter(second, 0.0)
    assert server.cut(2.0) == ([first], [second])
    assert (first.done, second.done) == (2, 0)


def test_time_stops_at_the_deadline_when_nothing_happens() -> None:
    world = World(1, ServerSpeed(t0=1.0))
    world.until(lambda: False, 7.0)
    assert world.now == 7.0

"""Remote rewards against a real HTTP server on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from verl_core.config.schema.reward import RemoteRewardConfig
from verl_core.reward.interface import Sample
from verl_core.reward.rate_limit import RateLimit
from verl_core.reward.remote import RemoteRewards


class Service(ThreadingHTTPServer):
    """What it does with a sample is the sample's solution."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.begun: list[float] = []
        self.seen: Counter[str] = Counter()
        self.at_work, self.most, self.lock = 0, 0, threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order = asked["solution_str"]
        with self.server.lock:
            self.server.begun.append(time.monotonic())
            self.server.seen[order] += 1
            self.server.at_work += 1
            self.server.most = max(self.server.most, self.server.at_work)
            attempt = self.server.seen[order]
        time.sleep(30 if order == "hang" else 0.05)
        with self.server.lock:
            self.server.at_work -= 1
        self.answer(order, attempt, asked)

    def answer(self, order: str, attempt: int, asked: dict[str, Any]) -> None:
        if order == "refuse":
            self.reply(403, b"no")
        elif order == "broken" or (order == "flaky" and attempt < 3):
            self.reply(500, b"oops")
        elif order == "busy" and attempt == 1:
            self.reply(429, b"later", {"Retry-After": "0.3"})
        elif order == "text":
            self.reply(200, b"<html>")
        elif order == "nan":
            self.reply(200, b"NaN")
        elif order == "drip":
            self.reply(200, b"1" * 100, pause_s=0.1)
        elif order == "number":
            self.reply(200, b"0.5")
        else:
            parts = {"score": len(order), "truth": asked["ground_truth"], "source": asked["data_source"]}
            self.reply(200, json.dumps({**parts, **asked["extra_info"]}).encode())

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, pause_s: float = 0.0) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        pieces = [bytes([byte]) for byte in body] if pause_s else [body]
        with contextlib.suppress(ConnectionError):  # the client may have gone
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(pause_s)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def samples(*orders: str) -> list[Sample]:
    return [Sample(f"{place}_0_0", "src", order, "12", {"difficulty": 3}) for place, order in enumerate(orders)]


def remote(service: Service, **settings: Any) -> RemoteRewards:
    return RemoteRewards(RemoteRewardConfig(**{"url": service.url, "timeout_s": 5.0, "deadline_s": 20.0, **settings}))


def test_answers_come_in_order_with_their_parts_and_failures_with_their_reasons(service: Service) -> None:
    orders = ("flaky", "number", "refuse", "text", "nan", "busy", "broken")
    rewards = remote(service, retries=2).score_each(samples(*orders))
    assert [reward.key for reward in rewards] == [f"{place}_0_0" for place in range(len(orders))]
    assert [reward.status for reward in rewards] == ["ok", "ok", "raised", "raised", "not_finite", "ok", "raised"]
    assert rewards[0].components == {"truth": "12", "source": "src", "difficulty": 3}
    assert (rewards[0].score, rewards[1].score, rewards[5].score) == (5.0, 0.5, 4.0)
    assert rewards[2].reason == f"{service.url}: status 403 Forbidden (attempts: 1)"
    assert "the answer is not JSON: b'<html>'" in rewards[3].reason
    assert rewards[6].reason == f"{service.url}: status 500 Internal Server Error (attempts: 3)"
    assert service.seen == {"flaky": 3, "number": 1, "refuse": 1, "text": 1, "nan": 1, "busy": 2, "broken": 3}


def test_no_more_requests_at_a_time_and_per_second_than_allowed(service: Service) -> None:
    orders = [f"s{number}" for number in range(12)]
    rewards = remote(service, max_concurrency=3).score_each(samples(*orders))
    assert all(not reward.quarantined for reward in rewards)
    assert 2 <= service.most <= 3
    service.begun.clear()
    service.most = 0
    remote(service, max_concurrency=8, requests_per_second=20.0).score_each(samples(*orders))
    assert (
        max(service.begun) - min(service.begun) >= 11 / 20 - 0.05
    )  # what lies between two ends of a connection varies


def test_a_service_that_hangs_costs_the_deadline_and_not_more(service: Service) -> None:
    started = time.monotonic()
    (reward,) = remote(service, timeout_s=0.3, deadline_s=1.0, retries=50).score_each(samples("hang"))
    assert time.monotonic() - started < 5.0
    assert reward.status == "timeout"
    assert "no answer within 0.3 s (reward.remote.timeout_s)" in reward.reason
    assert "reward.remote.deadline_s=1" in reward.reason


def test_a_service_that_never_ends_its_answer_costs_the_deadline_and_not_more(service: Service) -> None:
    started = time.monotonic()
    (reward,) = remote(service, timeout_s=0.4, deadline_s=0.8).score_each(samples("drip"))
    assert time.monotonic() - started < 4.0
    assert reward.status == "timeout"
    assert "the answer did not end in time" in reward.reason


def test_once_too_many_failed_the_service_is_not_asked_for_the_rest(service: Service) -> None:
    rewards = remote(service, max_concurrency=2).score_each(samples(*["refuse"] * 40, "number"), 2)
    assert 3 <= service.seen["refuse"] <= 4  # one may have been under way when the third failed
    assert service.seen["number"] == 0
    assert [reward.key for reward in rewards] == [f"{place}_0_0" for place in range(41)]
    assert {reward.status for reward in rewards} == {"raised"}
    untried = rf"not tried after [34] failures, the last of [0-3]_0_0: {service.url}: status 403 Forbidden"
    assert all(re.match(untried, reward.reason) for reward in rewards[4:])
    fewer = remote(service, max_concurrency=2).score_each(samples("refuse", "number", "refuse", "ok", "number"), 2)
    assert [reward.status for reward in fewer] == ["raised", "ok", "raised", "ok", "ok"]


def test_once_too_many_failed_what_is_under_way_is_not_tried_again(service: Service) -> None:
    started = time.monotonic()
    stubborn = remote(service, max_concurrency=2, retries=1000, deadline_s=30.0)
    rewards = stubborn.score_each(samples("broken", "refuse"), 0)
    assert time.monotonic() - started < 10.0
    assert [reward.status for reward in rewards] == ["raised", "raised"]
    assert service.seen["broken"] <= 3  # pauses of 0.1 and 0.2 s lie between these


def test_nobody_there() -> None:
    config = RemoteRewardConfig(url="http://127.0.0.1:9/score", retries=1, deadline_s=5.0)
    (reward,) = RemoteRewards(config).score_each(samples("x"))
    assert reward.status == "raised"
    assert "refused" in reward.reason
    assert reward.reason.endswith("(attempts: 2)")


def test_starts_are_a_gap_apart_whoever_asks() -> None:
    limit, starts, lock = RateLimit(50.0), [], threading.Lock()

    def start() -> None:
        for _ in range(4):
            limit.wait()
            with lock:
                starts.append(time.monotonic())

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(starts) == 12
    assert starts[-1] - starts[0] >= 11 / 50 - 0.01
    assert all(after >= before for before, after in pairwise(starts))

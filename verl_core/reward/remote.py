"""Remote rewards: samples are scored by an HTTP service. Invariant: at most `max_concurrency` requests are under way,
no more than `requests_per_second` are begun, and a sample that gets no score within its deadline says why.
Once there are more failures than the caller bears, nothing more is begun.

A sample is POSTed as the JSON object {data_source, solution_str, ground_truth, extra_info}; the answer is a JSON
number, or an object with `score` whose other entries become parts of the reward. Tried again: no connection, a
time-out, and status 408, 425, 429 and 5xx (after `Retry-After` seconds when the service names them). Any other answer
is final.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any

from verl_core.config.schema.reward import RemoteRewardConfig
from verl_core.reward.interface import Sample
from verl_core.reward.rate_limit import RateLimit
from verl_core.reward.scoring import judged, quarantined
from verl_core.trajectory import Reward

_LARGEST = 1 << 20  # bytes of an answer
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_AGAIN = frozenset({408, 425, 429})


class _Failed(Exception):
    """One attempt got no score. `again`: whether another may; `pause_s`: the service asked to wait so long."""

    def __init__(self, reason: str, again: bool, pause_s: float = 0.0, is_slow: bool = False) -> None:
        super().__init__(reason)
        self.again, self.pause_s, self.is_slow = again, pause_s, is_slow


class _Failures:
    """Of one call, over its threads.

    Args:
        most: with more of them the caller goes no further; None = it does.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self._count, self._last = most, 0, Reward("", 0.0)
        self._lock = threading.Lock()

    @property
    def too_many(self) -> bool:
        """Whether the caller goes no further."""
        return self._most is not None and self._count > self._most

    def note(self, reward: Reward) -> Reward:
        """Count it if it is one; the same reward."""
        if reward.quarantined:
            with self._lock:
                self._count, self._last = self._count + 1, reward
        return reward

    def untried(self, key: str) -> Reward:
        """Of a sample that is not asked for any more."""
        with self._lock:
            count, last = self._count, self._last
        return quarantined(key, last.status, f"not tried after {count} failures, the last of {last.key}: {last.reason}")


class RemoteRewards:
    """Args:
    config: with a url.
    """

    def __init__(self, config: RemoteRewardConfig) -> None:
        self._config = config
        self._limit = RateLimit(config.requests_per_second)

    def score_each(self, samples: Sequence[Sample], most_failures: int | None = None) -> list[Reward]:
        """One Reward per sample, in order; failures come back quarantined (`timeout` or `raised`).

        Args:
            most_failures: once there are more, what is under way is not tried again, and the rest is quarantined
                without being asked for. None = all are tried.
        """
        if not samples:
            return []
        failures = _Failures(most_failures)
        with ThreadPoolExecutor(min(self._config.max_concurrency, len(samples)), "remote-reward") as pool:
            return list(pool.map(lambda sample: self._score(sample, failures), samples))

    def _score(self, sample: Sample, failures: _Failures) -> Reward:
        if not failures.too_many:
            self._limit.wait()
        return failures.untried(sample.key) if failures.too_many else failures.note(self._answer(sample, failures))

    def _answer(self, sample: Sample, failures: _Failures) -> Reward:
        asked = {
            "data_source": sample.data_source,
            "solution_str": sample.solution,
            "ground_truth": sample.ground_truth,
            "extra_info": sample.extra_info,
        }
        body = json.dumps(asked, default=str).encode()
        until = time.monotonic() + self._config.deadline_s
        pause, attempt = _FIRST_PAUSE_S, 0
        while True:
            attempt += 1
            try:
                return judged(sample.key, self._ask(body, until))
            except _Failed as error:
                wait = max(pause, error.pause_s)
                is_over = time.monotonic() + wait >= until
                if not error.again or attempt > self._config.retries or is_over or failures.too_many:
                    return self._given_up(sample.key, error, attempt, is_over)
                time.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                self._limit.wait()

    def _given_up(self, key: str, error: _Failed, attempts: int, is_over: bool) -> Reward:
        told = f" and reward.remote.deadline_s={self._config.deadline_s:g}" if error.again and is_over else ""
        reason = f"{self._config.url}: {error} (attempts: {attempts}{told})"
        return quarantined(key, "timeout" if error.is_slow else "raised", reason)

    def _ask(self, body: bytes, until: float) -> Any:
        """The answer, decoded. Raises _Failed."""
        left = until - time.monotonic()
        if left <= 0:
            raise _Failed("no time left", again=True, is_slow=True)
        request = urllib.request.Request(self._config.url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=min(self._config.timeout_s, left)) as answer:
                text = _body(answer, until)
        except urllib.error.HTTPError as error:
            with error:
                again = error.code in _AGAIN or error.code >= 500
                raise _Failed(f"status {error.code} {error.reason}", again, _seconds(error)) from None
        except TimeoutError:
            limit = f"no answer within {self._config.timeout_s:g} s (reward.remote.timeout_s)"
            raise _Failed(limit, again=True, is_slow=True) from None
        except (OSError, HTTPException) as error:  # URLError is an OSError
            slow = isinstance(getattr(error, "reason", None), TimeoutError)
            raise _Failed(f"{type(error).__name__}: {error}", again=True, is_slow=slow) from None
        if text is None:
            raise _Failed("the answer did not end in time", again=True, is_slow=True)
        if len(text) > _LARGEST:
            raise _Failed(f"the answer is longer than {_LARGEST} bytes", again=False)
        try:
            return json.loads(text)
        except ValueError:
            raise _Failed(f"the answer is not JSON: {text[:80]!r}", again=False) from None


def _body(answer: HTTPResponse, until: float) -> bytes | None:
    """The answer, or one byte more than may be; None when it has not ended at `until`: a time-out of the socket only
    bounds the silence between two pieces."""
    text = b""
    while len(text) <= _LARGEST:
        if time.monotonic() >= until:
            return None
        piece = answer.read1(_LARGEST + 1 - len(text))
        if not piece:
            return text
        text += piece
    return text


def _seconds(error: urllib.error.HTTPError) -> float:
    """What `Retry-After` asks for; 0 when it is not there or is a date."""
    try:
        return max(0.0, float(error.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0

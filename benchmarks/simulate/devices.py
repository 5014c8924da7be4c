"""Devices: how fast a server samples and a trainer trains. Invariant: every speed is a number of this file's two
dataclasses; nothing else in the simulator knows seconds.

Decoding is bound by latency: with k requests running, each of them gets a token every t0 + t1 x k seconds. t0 is what a
step of the engine costs whoever is in it (weights are read once), t1 what a request adds (its keys and values, its part
of the arithmetic). So k requests on a server give k / (t0 + t1 k) tokens a second: proportional to k while k is small,
1 / t1 at most.

All requests of a server advance at the same pace. A server therefore has a token clock: it counts the tokens that each
running request has got since the server began, and a request that entered at c with r tokens to go leaves at c + r.
Events need only be made for the next one to leave.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerSpeed:
    """Attributes:
    t0, t1: seconds per token, see the head of this file.
    slots: requests that run together; the others queue, first come first served.
    read_s: seconds per token of a prompt, and of what a resumed request brings along; nothing is sampled meanwhile.
    free_tokens: tokens that an attempt gets at once, before any time has passed: 0 for an engine whose every token
        takes a step, 1 for ScriptedEngine, which sleeps after a token.
    """

    t0: float
    t1: float = 0.0
    slots: int = 1_000_000
    read_s: float = 0.0
    free_tokens: int = 0

    def pace(self, running: float) -> float:
        """Seconds per token of each request."""
        return self.t0 + self.t1 * running


@dataclass(frozen=True)
class TrainerSpeed:
    """Attributes:
    token_s: seconds that one device needs for one token (prompt and response), forward passes and updates together.
    devices: work is divided by them.
    step_s: seconds of a step that do not depend on tokens (loop, files, dispatch).
    publish_s: until the servers have the weights; servers that are awake generate meanwhile.
    switch_s: for which servers that are awake then stand still.
    sleep_s, wake_s: of servers on the trainer's devices.
    """

    token_s: float
    devices: int = 1
    step_s: float = 0.0
    publish_s: float = 0.0
    switch_s: float = 0.0
    sleep_s: float = 0.0
    wake_s: float = 0.0

    def seconds(self, tokens: float) -> float:
        """To train on `tokens`."""
        return self.token_s * tokens / self.devices


@dataclass(eq=False, slots=True)
class Request:
    """One response on its way.

    Attributes:
        key: (uid, session).
        prompt: tokens to read first.
        length: tokens it will have.
        done: tokens of earlier attempts.
        segments: (weight version, tokens) so far.
    """

    key: tuple[str, int]
    prompt: int
    length: int
    done: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)
    entered: float = 0.0  # token clock of the server when its attempt began

    def gain(self, version: int, tokens: int) -> None:
        """Tokens of one attempt."""
        if tokens <= 0:
            return
        self.done += tokens
        if self.segments and self.segments[-1][0] == version:
            tokens += self.segments.pop()[1]
        self.segments.append((version, tokens))


class Server:
    """An inference server in virtual time. Owner: one World, which tells it the time.

    Attributes:
        version: weights it serves.
        still: it samples nothing (asleep, or switching weights).
        busy_s, tokens: seconds with a request inside, tokens sampled.
        stamp: changes whenever the next completion may have moved.
    """

    def __init__(self, name: str, speed: ServerSpeed) -> None:
        self.name, self.speed = name, speed
        self.version, self.still, self.stamp = 0, False, 0
        self.busy_s = self.occupancy_s = 0.0
        self.tokens = 0
        self._clock = self._time = self._debt = 0.0  # token clock; when it was right; seconds of reading ahead of it
        self._running: list[tuple[float, int, Request]] = []
        self._queue: deque[Request] = deque()
        self._order = itertools.count()

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait for one."""
        return len(self._queue)

    def enter(self, request: Request, now: float) -> None:
        """A request arrives; it begins when a slot is free."""
        self._advance(now)
        self._queue.append(request)
        self._fill()

    def next_completion(self) -> float:
        """When the next request ends if nothing happens before; infinity when none will."""
        if self.still or not self._running:
            return math.inf
        missing = max(0.0, self._running[0][0] - self._clock)
        return self._time + self._debt + missing * self.speed.pace(len(self._running))

    def completed(self, now: float) -> list[Request]:
        """Those that have all their tokens at `now`; they leave."""
        self._advance(now)
        gone = []
        while self._running and self._running[0][0] <= self._clock + 1e-9 * (1.0 + self._clock):
            request = heapq.heappop(self._running)[2]
            self._give(request, request.length - request.done)
            gone.append(request)
        if gone:
            self._fill()
        return gone

    def cut(self, now: float) -> tuple[list[Request], list[Request]]:
        """All requests leave with the whole tokens they have: (those that ran, those that queued), each in the order
        they entered."""
        self._advance(now)
        running = [request for _, _, request in sorted(self._running, key=lambda entry: entry[1])]
        for request in running:
            gained = math.floor(self._clock - request.entered + 1e-6) + self.speed.free_tokens
            self._give(request, min(gained, request.length - request.done))
        queued = list(self._queue)
        self._running.clear()
        self._queue.clear()
        self._debt = 0.0
        self.stamp += 1
        return running, queued

    def halt(self, still: bool, now: float) -> None:
        """Stand still, or go on."""
        self._advance(now)
        self.still = still
        self.stamp += 1

    def settle(self, now: float) -> None:
        """Bring the counters to `now`."""
        self._advance(now)

    def _give(self, request: Request, tokens: int) -> None:
        request.gain(self.version, tokens)
        self.tokens += tokens

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.speed.slots:
            request = self._queue.popleft()
            missing = max(0, request.length - request.done - self.speed.free_tokens)
            request.entered = self._clock
            self._debt += self.speed.read_s * (request.prompt + request.done)
            heapq.heappush(self._running, (self._clock + missing, next(self._order), request))
        self.stamp += 1

    def _advance(self, now: float) -> None:
        passed, self._time = now - self._time, now
        if self.still or not self._running or passed <= 0.0:
            return
        self.busy_s += passed
        self.occupancy_s += passed * len(self._running)
        reading = min(self._debt, passed)
        self._debt -= reading
        self._clock += (passed - reading) / self.speed.pace(len(self._running))

"""Agents: from a prompt to a finished group in the store, over simulated servers. Invariant: a request is on exactly
one server, or parked; a group is handed to the store when its last session ends.

What the product does with Ray actors and clients is done here by function calls: requests choose their server by the
product's own ServerPool, one per agent worker; whoever is cut off keeps its tokens, and goes on when the servers do.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.simulate.devices import Request, Server
from benchmarks.simulate.lengths import Lengths
from benchmarks.simulate.world import World
from verl_core.deadline import Deadline
from verl_core.rollout.pool import Seat, ServerPool
from verl_core.trajectory import Prompt, Segment, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag, Manifest
from verl_core.transfer.interface import Finished, TrajectoryStore

_NO_WAIT = Deadline("a seat, which is always there", 1.0)


@dataclass(slots=True)
class _Group:
    prompt: Prompt
    left: int
    done: list[Request] = field(default_factory=list)


class Agents:
    """Args:
    lengths, seed: of the responses.
    prompt_tokens: of every prompt.
    workers: agent workers; each has a pool of its own and knows only its own requests.
    grain: a recorded response has one token for each `grain` simulated ones: rows stay small, and everything that
        counts tokens of the record counts grains.

    Attributes:
        tokens_of: prompt and response tokens of a trajectory that is not trained yet, by its key.
        lengths_of: response lengths of each group that finished, by ordinal.
        cut_tokens: tokens that resumed requests read again.
    """

    def __init__(
        self,
        world: World,
        store: TrajectoryStore,
        lengths: Lengths,
        seed: int = 0,
        prompt_tokens: int = 0,
        workers: int = 1,
        grain: int = 1,
    ) -> None:
        self._world, self._store, self._lengths, self._seed = world, store, lengths, seed
        self._prompt_tokens, self._grain = prompt_tokens, grain
        self._pools = [ServerPool(world.servers, seed=worker) for worker in range(workers)]
        self._turn = itertools.cycle(self._pools)
        self._pool_of: dict[str, ServerPool[Server]] = {}
        self._seats: dict[tuple[str, int], Seat[Server]] = {}
        self._groups: dict[str, _Group] = {}
        self._parked: list[Request] = []
        self.tokens_of: dict[str, int] = {}
        self.lengths_of: dict[int, tuple[int, ...]] = {}
        self.cut_tokens = 0
        world.on_done = self._completed

    # ---- what the replay buffer and the trainer call

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """Start the groups."""
        for prompt in prompts:
            self._groups[prompt.uid] = _Group(prompt, prompt.n)
            self._pool_of[prompt.uid] = next(self._turn)
            drawn = self._lengths.draw(self._seed, prompt.ordinal, prompt.n)
            self._send([Request((prompt.uid, k), self._prompt_tokens, drawn[k]) for k in range(prompt.n)])

    def cut(self) -> None:
        """Every request leaves its server and waits; it keeps its tokens. Those that ran go on first: the product's
        client asks again at once after an attempt that brought tokens, and rests after one that did not."""
        pairs = [server.cut(self._world.now) for server in self._world.servers.values()]
        gone = [request for running, _ in pairs for request in running]
        gone += [request for _, queued in pairs for request in queued]
        for request in gone:
            self._release(request)
        self._parked = gone + self._parked
        self._settle_ended()

    def resume(self) -> None:
        """Those that wait go on."""
        parked, self._parked = self._parked, []
        self.cut_tokens += sum(request.done for request in parked)
        self._send(parked)

    @property
    def waiting(self) -> int:
        """Requests that are cut off."""
        return len(self._parked)

    # ---- requests

    def _send(self, requests: Sequence[Request]) -> None:
        """To the server that the pool chooses; when servers stand still, requests wait at their closed gate."""
        if any(server.still for server in self._world.servers.values()):
            self._parked.extend(requests)
            return
        touched = {}
        for request in requests:
            uid, session = request.key
            seat = _at_once(self._pool_of[uid].acquire(f"{uid}_{session}", _NO_WAIT))
            self._seats[request.key] = seat
            seat.handle.enter(request, self._world.now)
            touched[seat.name] = seat.handle
        self._world.touch(list(touched.values()))

    def _release(self, request: Request) -> None:
        self._pool_of[request.key[0]].release(self._seats.pop(request.key), served=True)

    def _completed(self, server: Server, requests: list[Request]) -> None:
        for request in requests:
            self._release(request)
            self._end(request)

    def _settle_ended(self) -> None:
        """A cut may give the last token of a response (`free_tokens`): then it is over."""
        ended = [request for request in self._parked if request.done >= request.length]
        self._parked = [request for request in self._parked if request.done < request.length]
        for request in ended:
            self._end(request)

    def _end(self, request: Request) -> None:
        group = self._groups[request.key[0]]
        group.done.append(request)
        group.left -= 1
        if group.left == 0:
            self._finish(group)

    def _finish(self, group: _Group) -> None:
        prompt = group.prompt
        del self._groups[prompt.uid], self._pool_of[prompt.uid]
        rows = sorted(group.done, key=lambda request: request.key[1])
        self.lengths_of[prompt.ordinal] = tuple(request.length for request in rows)
        for request in rows:
            self.tokens_of[f"{prompt.uid}_{request.key[1]}_0"] = request.prompt + request.length
        tag = GroupTag(
            prompt.uid,
            prompt.base_uid,
            prompt.attempt,
            prompt.ordinal,
            prompt.step,
            GroupStatus.FINISHED,
            "simulated",
            self._world.now,
            Manifest(),
        )
        self._store.finish([Finished(tag, tuple(self._row(prompt, request) for request in rows))])

    def _row(self, prompt: Prompt, request: Request) -> Trajectory:
        segments = in_grains(request.segments, self._grain)
        size = sum(segment.length for segment in segments)
        return Trajectory(
            uid=prompt.uid,
            session=request.key[1],
            index=0,
            ordinal=prompt.ordinal,
            prompt_ids=prompt.token_ids,
            response_ids=np.zeros(size, np.int32),
            response_mask=np.ones(size, np.bool_),
            rollout_log_probs=np.zeros(size, np.float32),
            segments=segments,
            stop_reason="stop",
            data_source=prompt.data_source,
        )


def in_grains(segments: Sequence[tuple[int, int]], grain: int) -> tuple[Segment, ...]:
    """The same segments in grains, rounded up; the first one, which decides the staleness, never vanishes."""
    rows, done, written = [], 0, 0
    for version, tokens in segments:
        done += tokens
        upto = -(-done // grain)
        if upto > written:
            rows.append(Segment(version, upto - written))
            written = upto
    return tuple(rows)


def _at_once(coroutine: Coroutine[Any, Any, Seat[Server]]) -> Seat[Server]:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        seat: Seat[Server] = result.value
        return seat
    coroutine.close()
    raise RuntimeError("the pool has no server that takes a request")


def usage_of(servers: Mapping[str, Server], now: float) -> tuple[float, int]:
    """(seconds with a request inside, tokens), of all servers together."""
    for server in servers.values():
        server.settle(now)
    return sum(s.busy_s for s in servers.values()), sum(s.tokens for s in servers.values())

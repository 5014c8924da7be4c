"""What a server's engine was used for. Invariant: counters only grow during one life of the server's process, and every
request that entered is counted once when it leaves.

The engine is busy while at least one request is inside it. Two accounts of one server give the share of an interval:
`later.since(earlier).busy_share`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from verl_core.rollout.interface import Generation


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """An account, or the difference of two.

    Attributes:
        life: of the process; counters start at zero with each.
        clock_s: seconds since the life began, on the server's monotonic clock.
        busy_s: of these, seconds with at least one request in the engine; the one running now is included.
        inside: requests in the engine now.
        finished: requests answered whole (`stop`, `length`).
        aborted: requests answered with what they had.
        resumed: of all requests that entered, those that brought tokens of an earlier attempt.
        failed: requests that left without an answer: cancelled, out of time, refused, or the engine died.
        tokens: sampled tokens in all answers; a request counts when it leaves.
        tokens_read_again: tokens that resumed requests brought along, whose keys and values were computed once more.
        tokens_discarded: tokens in aborted answers to clients that do not resume.
    """

    life: str
    clock_s: float = 0.0
    busy_s: float = 0.0
    inside: int = 0
    finished: int = 0
    aborted: int = 0
    resumed: int = 0
    failed: int = 0
    tokens: int = 0
    tokens_read_again: int = 0
    tokens_discarded: int = 0

    def since(self, earlier: ServerUsage | None) -> ServerUsage:
        """What happened after `earlier`; everything, when that is of another life or None. `inside` stays as it is."""
        if earlier is None or earlier.life != self.life:
            return self
        counted = [field.name for field in fields(self) if field.name not in ("life", "inside")]
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in counted})

    @property
    def busy_share(self) -> float:
        """busy_s / clock_s, 0 for an empty interval."""
        return self.busy_s / self.clock_s if self.clock_s > 0 else 0.0


class UsageMeter:
    """Owner: one LLMServer, on its event loop."""

    def __init__(self, life: str) -> None:
        self._so_far = ServerUsage(life)
        self._born = time.monotonic()
        self._busy_since = 0.0

    @contextmanager
    def request(self, done: int | None) -> Iterator[list[Generation]]:
        """A request is inside while the block runs; put its answer into the list.

        Args:
            done: tokens it brought from earlier attempts; None for a client that does not resume.
        """
        self._enter(done or 0)
        answer: list[Generation] = []
        try:
            yield answer
        finally:
            self._leave(answer[0] if answer else None, discarded=done is None)

    def read(self) -> ServerUsage:
        """The account now."""
        now = time.monotonic()
        busy = now - self._busy_since if self._so_far.inside else 0.0
        return replace(self._so_far, clock_s=now - self._born, busy_s=self._so_far.busy_s + busy)

    def _enter(self, done: int) -> None:
        was = self._so_far
        if not was.inside:
            self._busy_since = time.monotonic()
        self._so_far = replace(
            was,
            inside=was.inside + 1,
            resumed=was.resumed + (done > 0),
            tokens_read_again=was.tokens_read_again + done,
        )

    def _leave(self, answer: Generation | None, discarded: bool) -> None:
        was = self._so_far
        last = was.inside == 1
        tokens = len(answer.token_ids) if answer is not None else 0
        cut = answer is not None and answer.stop_reason == "abort"
        self._so_far = replace(
            was,
            inside=was.inside - 1,
            busy_s=was.busy_s + (time.monotonic() - self._busy_since if last else 0.0),
            finished=was.finished + (answer is not None and not cut),
            aborted=was.aborted + cut,
            failed=was.failed + (answer is None),
            tokens=was.tokens + tokens,
            tokens_discarded=was.tokens_discarded + (tokens if cut and discarded else 0),
        )

"""Receiving a push beside generation. Invariant: what `take` gives was mapped, its checksums verified and its names,
shapes and values checked, all on a thread of its own; the model was not touched.

Owner of a Staging: the worker that holds the model. `until_staged` is the engine's side of the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch

from verl_core.deadline import Deadline
from verl_core.errors import WeightError
from verl_core.weights.adapter import ExpectedAdapter
from verl_core.weights.expected import ExpectedWeights
from verl_core.weights.interface import WeightManifest
from verl_core.weights.receiving import mapped
from verl_core.weights.segment import Segment

AT_ONCE_S = 0.01  # a small model is staged within the first question; generation may wait that long
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.05
Account = tuple[bool, str]  # (is over, what was wrong)


@dataclass
class _Held:
    """A checked push; `tensors` are views of the mapped `segments`."""

    version: int
    tensors: dict[str, torch.Tensor]
    segments: list[Segment]

    def close(self) -> None:
        """Let go of the mappings, so that the sender may reuse the files."""
        self.tensors = {}
        while self.segments:
            self.segments.pop().close()


class Staging:
    """Holds one push at most.

    Args:
        expected: what a complete set of weights, or a complete adapter, is.
    """

    def __init__(self, expected: ExpectedWeights | ExpectedAdapter) -> None:
        self._expected = expected
        self._thread = ThreadPoolExecutor(1, "weight-staging")
        self._push: Future[_Held] | None = None

    def begin(self, manifest: WeightManifest) -> Account:
        """Start to receive; what was held before is dropped. Returns the account after some milliseconds."""
        self.drop()
        self._push = self._thread.submit(self._receive, manifest)
        return self.account(AT_ONCE_S)

    def account(self, wait_s: float = 0.0) -> Account:
        """How far it is."""
        if self._push is None:
            return True, "no weights are on their way"
        wait([self._push], timeout=wait_s)
        if not self._push.done():
            return False, ""
        error = self._push.exception()
        return True, "" if error is None else str(error) or repr(error)

    def take(self, version: int) -> dict[str, torch.Tensor]:
        """The checked tensors by Hugging Face name; valid until `drop`.

        Raises:
            WeightError: this version is not held.
        """
        over, wrong = self.account()
        if self._push is None or not over or wrong or self._push.result().version != version:
            raise WeightError(f"weight version {version} was not received: {wrong or 'another one is on its way'}")
        return self._push.result().tensors

    def drop(self) -> None:
        """Forget what is held or on its way."""
        push, self._push = self._push, None
        if push is not None and not push.cancel():
            push.add_done_callback(_let_go)

    def close(self) -> None:
        """Forget, and end the thread."""
        self.drop()
        self._thread.shutdown(wait=False)

    def _receive(self, manifest: WeightManifest) -> _Held:
        tensors, segments = mapped(manifest)
        held = _Held(manifest.version, tensors, segments)
        try:
            held.tensors = self._expected.check(tensors)
        except BaseException:
            held.close()
            raise
        return held


def _let_go(push: Future[_Held]) -> None:
    if push.exception() is None:
        push.result().close()


async def until_staged(
    version: int, began: Sequence[Account], ask: Callable[[], Awaitable[Sequence[Account]]], deadline: Deadline
) -> None:
    """Return when all workers hold the push.

    Args:
        began: the workers' first accounts.
        ask: gives their accounts now.

    Raises:
        WeightError: a worker refused it.
        DeadlineExceeded: a worker is not done in time.
    """
    accounts, look_s = began, _FIRST_LOOK_S
    while True:
        for over, wrong in accounts:
            if over and wrong:
                raise WeightError(f"weight version {version} cannot be received: {wrong}")
        if all(over for over, _ in accounts):
            return
        deadline.check()
        await asyncio.sleep(look_s)
        look_s = min(_LONGEST_LOOK_S, 2 * look_s)
        accounts = await ask()

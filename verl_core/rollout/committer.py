"""StoreCommitter: brings running tags and settled groups into the store. Owner: one agent worker, on its event loop.

Invariant: one commit at a time, each taking all that waits, so a group's `running` tag never lands after its terminal
tag. A settled group is in the store, or in `trouble`; it is never dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from verl_core.errors import DeadlineExceeded
from verl_core.rollout.group_run import describe
from verl_core.rollout.trouble import Trouble
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import Finished, TrajectoryStore

_ATTEMPTS, _REST_S = 3, 1.0


class StoreCommitter:
    """GroupSink over a store. The store is called from one thread of its own, so the loop stays free.

    Args:
        store: closed by `close`.
        trouble: told of every failure.
    """

    def __init__(self, store: TrajectoryStore, trouble: Trouble) -> None:
        self._store, self._trouble = store, trouble
        self._thread = ThreadPoolExecutor(1, "store-committer")
        self._running: list[GroupTag] = []
        self._settled: list[Finished] = []
        self._task: asyncio.Task[None] | None = None

    def running(self, tag: GroupTag) -> None:
        """The group started; written with the next commit."""
        self._running.append(tag)
        self._wake()

    def settled(self, group: Finished) -> None:
        """The group is over; published with the next commit."""
        self._settled.append(group)
        self._wake()

    @property
    def waiting(self) -> int:
        """Settled groups not yet in the store."""
        return len(self._settled)

    async def forget(self) -> None:
        """Drop what waits; returns when the commit under way, if any, is over."""
        self._running, self._settled = [], []
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Publish what waits, then leave the store."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._attempt("the farewell", self._store.close)
        self._thread.shutdown(wait=False)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._drain(), name="store-committer")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._trouble.record(f"the committer stopped: {type(error).__name__}: {error}")

    async def _drain(self) -> None:
        while self._running or self._settled:
            settled, self._settled = self._settled, []
            running, self._running = self._running, []
            over = {group.tag.uid for group in settled}
            started = [tag for tag in running if tag.uid not in over]
            if started:
                await self._attempt("running tags", partial(self._store.write_tags, started))
            if settled:
                await self._publish(settled)

    async def _publish(self, groups: Sequence[Finished]) -> None:
        """Group commit. What the store refuses is tried group by group, then as a failure without rows."""
        if await self._attempt(f"{len(groups)} groups", partial(self._store.finish, groups)):
            return
        for group in groups:
            what = f"group {group.tag.uid}"
            if len(groups) > 1 and await self._attempt(what, partial(self._store.finish, [group])):
                continue
            bare = _without_rows(group, self._trouble.newest[-1])
            if not await self._attempt(f"{what} as a failure", partial(self._store.finish, [bare])):
                self._trouble.record(f"{what} could not be published; its lease will run out")

    async def _attempt(self, what: str, call: Callable[[], object]) -> bool:
        """Whether the call succeeded. A refusal is final; a store that does not answer is asked again."""
        for attempt in range(_ATTEMPTS):
            error = await self._error_of(call)
            if error is None:
                return True
            self._trouble.record(f"the store did not take {what} (attempt {attempt + 1}): {describe(error)}")
            if not isinstance(error, DeadlineExceeded):
                return False
            await asyncio.sleep(_REST_S * attempt)
        return False

    async def _error_of(self, call: Callable[[], object]) -> BaseException | None:
        done = asyncio.get_running_loop().run_in_executor(self._thread, call)
        await asyncio.wait([done])
        return done.exception()


def _without_rows(group: Finished, reason: str) -> Finished:
    manifest = replace(group.tag.manifest, errors=(*group.tag.manifest.errors, reason))
    return Finished(replace(group.tag, status=GroupStatus.FAILURE, manifest=manifest), ())

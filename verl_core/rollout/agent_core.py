"""AgentCore: what both agent workers do; they differ only in the sink. Owner: one agent worker, on its event loop.

Invariant: every prompt started reaches the sink exactly once, as a settled group, whatever its agent loop does; unless
`reset` was called or its uid was started anew meanwhile: then it never does.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from verl_core.rollout.group_run import GroupRunner, describe, failed_group, tag_of
from verl_core.rollout.trouble import Trouble
from verl_core.trajectory import Prompt
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import Finished

_REMEMBERED_DISPATCHES = 1024
_HEALTH_GROUPS = 20


class GroupSink(Protocol):
    """Where groups go. No call blocks."""

    def running(self, tag: GroupTag) -> None:
        """A group started."""

    def settled(self, group: Finished) -> None:
        """A group is over; no session of it will hand in anything more."""

    @property
    def waiting(self) -> int:
        """Settled groups that have not left yet."""

    async def forget(self) -> None:
        """Drop what has not left yet; when it returns, nothing handed over before is on its way any more."""

    async def close(self) -> None:
        """Deliver what can be delivered and let go."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What an agent worker knows of itself.

    Attributes:
        running: number of groups under way; `oldest` has uid and age in seconds of the oldest of them.
        waiting: settled, not yet delivered.
        started, finished, failed: groups since the start of the process.
        troubles: failures in the background, in number and (the newest) in words.
        servers: the pool, in words.
    """

    owner: str
    running: int
    oldest: tuple[tuple[str, float], ...]
    waiting: int
    started: int
    finished: int
    failed: int
    troubles: int
    newest_troubles: tuple[str, ...]
    servers: str = ""


@dataclass
class AgentCore:
    """Starts groups and lets them go to the sink as they settle.

    Attributes:
        runner: runs one group.
        sink: closed by `close`.
        trouble: shared with the sink.
    """

    runner: GroupRunner
    sink: GroupSink
    trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Finished]] = {}
        self._since: dict[str, float] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._counts = {GroupStatus.RUNNING: 0, GroupStatus.FINISHED: 0, GroupStatus.FAILURE: 0}

    def start(self, prompts: Sequence[Prompt], dispatch: str) -> None:
        """Start one background task per group and return. A group that still runs from an earlier dispatch (of a
        driver that crashed and serves the same uids again) is started anew.

        Args:
            dispatch: id of the call; one that was seen before changes nothing, so a call may be repeated.
        """
        if dispatch in self._seen:
            return
        self._seen[dispatch] = None
        if len(self._seen) > _REMEMBERED_DISPATCHES:
            self._seen.popitem(last=False)
        for prompt in prompts:
            self._forget(prompt.uid)
            self._start_one(prompt)

    async def reset(self) -> None:
        """Forget all groups: nothing started before is handed over after this returns."""
        cancelled = [task for uid in list(self._tasks) if (task := self._forget(uid)) is not None]
        if cancelled:
            await asyncio.wait(cancelled)
        await self.sink.forget()

    def health(self, servers: str = "") -> WorkerHealth:
        """Snapshot."""
        now = time.monotonic()
        oldest = sorted(self._since.items(), key=lambda item: item[1])[:_HEALTH_GROUPS]
        return WorkerHealth(
            owner=self.runner.owner,
            running=len(self._tasks),
            oldest=tuple((uid, round(now - since, 1)) for uid, since in oldest),
            waiting=self.sink.waiting,
            started=self._counts[GroupStatus.RUNNING],
            finished=self._counts[GroupStatus.FINISHED],
            failed=self._counts[GroupStatus.FAILURE],
            troubles=self.trouble.count,
            newest_troubles=tuple(self.trouble.newest),
            servers=servers,
        )

    async def close(self) -> None:
        """Cancel what runs (it is handed over as failed) and close the sink."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # lets the callbacks of the tasks run
        await self.sink.close()

    def _start_one(self, prompt: Prompt) -> None:
        self._counts[GroupStatus.RUNNING] += 1
        self._since[prompt.uid] = time.monotonic()
        self.sink.running(tag_of(prompt, GroupStatus.RUNNING, self.runner.owner))
        task = asyncio.get_running_loop().create_task(self.runner.run(prompt), name=f"group {prompt.uid}")
        self._tasks[prompt.uid] = task
        task.add_done_callback(lambda done: self._ended(prompt, done))

    def _forget(self, uid: str) -> asyncio.Task[Finished] | None:
        """Cancel the group's task, if it has one, and expect nothing of it."""
        task = self._tasks.pop(uid, None)
        self._since.pop(uid, None)
        if task is not None:
            task.cancel()
        return task

    def _ended(self, prompt: Prompt, task: asyncio.Task[Finished]) -> None:
        if self._tasks.get(prompt.uid) is not task:
            return  # forgotten
        self._tasks.pop(prompt.uid)
        self._since.pop(prompt.uid)
        group = self._outcome(prompt, task)
        self._counts[group.tag.status] += 1
        self.sink.settled(group)

    def _outcome(self, prompt: Prompt, task: asyncio.Task[Finished]) -> Finished:
        if task.cancelled():
            return failed_group(prompt, self.runner.owner, "the agent worker was shut down")
        error = task.exception()
        if error is None:
            return task.result()
        self.trouble.record(f"group {prompt.uid}: {describe(error)}")
        return failed_group(prompt, self.runner.owner, describe(error))

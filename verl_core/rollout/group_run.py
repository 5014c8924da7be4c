"""One group: its sessions side by side, until every one of them settled.

Invariant: a session that raises, is cancelled or hangs fails itself and nothing else, and no session is still
expected to hand in anything when the group is handed over.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from dataclasses import dataclass

from verl_core.config.schema import RunConfig
from verl_core.errors import VerlError
from verl_core.rollout.clients import GreedyClient, resumable
from verl_core.rollout.interface import AgentLoop, LLMClient
from verl_core.rollout.session_check import checked_session
from verl_core.trajectory import Prompt, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag, Manifest
from verl_core.transfer.interface import Finished

TIMEOUT_GRACE_S = 1.0  # the client's own time-out is first: it knows more
RESUMED_GRACE_S = 10.0  # and where requests are resumed, it gives the server's time-outs a grace of its own
CANCEL_GRACE_S = 5.0  # for clean-up code of a cancelled session


def tag_of(prompt: Prompt, status: GroupStatus, owner: str, errors: tuple[str, ...] = ()) -> GroupTag:
    """The group's whole tag as of now."""
    return GroupTag(
        uid=prompt.uid,
        base_uid=prompt.base_uid,
        attempt=prompt.attempt,
        ordinal=prompt.ordinal,
        step=prompt.step,
        status=status,
        owner=owner,
        updated=time.time(),
        manifest=Manifest(errors=errors),
    )


def failed_group(prompt: Prompt, owner: str, error: str) -> Finished:
    """A group that gave nothing."""
    return Finished(tag_of(prompt, GroupStatus.FAILURE, owner, (error,)), ())


@dataclass(frozen=True)
class GroupRunner:
    """Runs groups with one agent loop.

    Attributes:
        owner: name of the worker, for the tags.
    """

    config: RunConfig
    agent: AgentLoop
    client: LLMClient
    owner: str

    async def run(self, prompt: Prompt) -> Finished:
        """All sessions of the group. FAILURE if any session failed; what the others gave is kept."""
        names = [f"{prompt.uid}_{session}" for session in range(prompt.n)]
        tasks = [
            asyncio.create_task(self.agent.run(prompt, session, self._client(prompt, session)), name=name)
            for session, name in enumerate(names)
        ]
        hung = await self._settle(tasks)
        trajectories: list[Trajectory] = []
        errors: list[str] = []
        for session, task in enumerate(tasks):
            outcome = self._outcome(prompt, session, task, task in hung)
            if isinstance(outcome, str):
                errors.append(f"session {session}: {outcome}")
            else:
                trajectories.extend(outcome)
        status = GroupStatus.FAILURE if errors else GroupStatus.FINISHED
        return Finished(tag_of(prompt, status, self.owner, tuple(errors)), tuple(trajectories))

    def _client(self, prompt: Prompt, session: int) -> LLMClient:
        """A greedy baseline is greedy with an agent loop of the user's own too, which need not know of it."""
        is_greedy = session == self.config.greedy_session and not prompt.validation
        return GreedyClient(self.client) if is_greedy else self.client

    async def _settle(self, tasks: list[asyncio.Task[list[Trajectory]]]) -> set[asyncio.Task[list[Trajectory]]]:
        """Wait for all; returns those that did not end by themselves in time. They are cancelled, and left alone if
        even that does not end them: nothing they do later has an effect."""
        hung: set[asyncio.Task[list[Trajectory]]] = set()
        try:
            _, hung = await asyncio.wait(tasks, timeout=self._limit_s)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
                    task.add_done_callback(_read_exception)
        if hung:
            await asyncio.wait(hung, timeout=CANCEL_GRACE_S)
        return hung

    @property
    def _limits(self) -> dict[str, float]:
        """What bounds a session, in seconds by key. One that is paused with its server is not cut off for it."""
        rollout = self.config.actor_rollout_ref.rollout
        bounds = {"rollout.request_timeout_s": rollout.request_timeout_s}
        if resumable(self.config):
            bounds["rollout.pause_timeout_s"] = rollout.pause_timeout_s
        turns = rollout.multi_turn
        if turns.enable:  # all turns share the bounds above; tools have their own
            bounds["rollout.multi_turn.max_assistant_turns x tool_timeout_s"] = turns.tools_limit_s
        return bounds

    @property
    def _limit_s(self) -> float:
        grace = RESUMED_GRACE_S if resumable(self.config) else TIMEOUT_GRACE_S
        return sum(self._limits.values()) + grace

    def _outcome(
        self, prompt: Prompt, session: int, task: asyncio.Task[list[Trajectory]], hung: bool
    ) -> tuple[Trajectory, ...] | str:
        """The session's trajectories, or why there are none."""
        if hung:
            limit = " + ".join(f"{key}={seconds:g}" for key, seconds in self._limits.items())
            return f"still running after {limit}, cut off" + ("" if task.done() else "; it ignores being cancelled")
        if task.cancelled():
            return "cancelled"
        error = task.exception()
        if error is not None:
            return describe(error)
        try:
            return checked_session(prompt, session, task.result(), self.config.data.max_response_length)
        except VerlError as refusal:
            return describe(refusal)


def describe(error: BaseException) -> str:
    """One line: type, message and, for errors that nobody raised on purpose, where they came from."""
    message = " ".join(str(error).split())[:2000]
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, VerlError) or not frames:
        return f"{type(error).__name__}: {message}"
    last = frames[-1]
    return f"{type(error).__name__}: {message} ({os.path.basename(last.filename)}:{last.lineno} in {last.name})"


def _read_exception(task: asyncio.Task[list[Trajectory]]) -> None:
    """Mark the outcome of a session that was given up as seen."""
    if not task.cancelled():
        task.exception()

"""PromptFeed: serves prompts as far ahead of training as the mode says.

Invariant: ordinals are served in their order, each once. What was served and is neither trained nor dropped is `open`,
and a process that takes over serves exactly that again before anything new: a warm-up is topped up, never doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from verl_core.config.schema import RunConfig
from verl_core.data.stream import PromptStream
from verl_core.record.checkpoints import Checkpoint
from verl_core.trainer.sampling import SamplingBook
from verl_core.trajectory import Prompt
from verl_core.transfer.replay_buffer import Group, ReplayBuffer


@dataclass(frozen=True)
class FeedState:
    """Where serving stands after the rollout of a step; a JSON file of the step and part of a checkpoint.

    Attributes:
        next: ordinal of the first prompt that was never served.
        open: ordinals that were served and have no outcome, ascending.
        replaced: prompts served in the place of dropped ones.
        owed: groups that were dropped, and not replaced yet because a cap forbade it; see `transfer.refills`.
    """

    next: int
    open: tuple[int, ...] = ()
    replaced: int = 0
    owed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "open": list(self.open)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FeedState:
        """Inverse of `to_json`."""
        opened = tuple(int(ordinal) for ordinal in raw["open"])
        return cls(int(raw["next"]), opened, int(raw["replaced"]), int(raw.get("owed", 0)))


class FeedFiles(Protocol):
    """Where states are kept."""

    def feed(self, step: int) -> FeedState | None:
        """State after the rollout of `step`; None when it was the plain one."""

    def save_feed(self, step: int, state: FeedState) -> None:
        """Durable when it returns."""


@dataclass(frozen=True)
class FeedPlan:
    """How many prompts are served when.

    Attributes:
        batch_size: groups a step trains on.
        warmup_batches: how many batches are served ahead of the step that needs them; 0 = none.
        total_steps: nothing is served that no step would train on.
        start_step: step of the weights that the run starts from.
        start: where serving stood then, nothing replaced yet.
        start_sampling: and where its sampler stood.
    """

    batch_size: int
    warmup_batches: float
    total_steps: int
    start_step: int
    start: FeedState
    start_sampling: dict[str, Any] | None = None

    def plain(self, step: int) -> FeedState:
        """The state after `step` when nothing is ahead, open or replaced."""
        return FeedState(self.start.next + (step - self.start_step) * self.batch_size)

    def target(self, step: int, state: FeedState) -> int:
        """First ordinal that is not served yet when the rollout of `step` begins."""
        groups = self._groups(step) + state.replaced
        inherited = len(self.start.open)  # a branch serves these first
        return self.start.next + max(0, groups - inherited)

    def share(self, step: int) -> int:
        """Groups that `target` adds when the rollout of `step` begins, without those that replace others."""
        return self._groups(step) - (self._groups(step - 1) if step - 1 > self.start_step else 0)

    def _groups(self, step: int) -> int:
        ahead = math.ceil(self.warmup_batches * self.batch_size)
        whole_run = (self.total_steps - self.start_step) * self.batch_size
        return min((step - self.start_step) * self.batch_size + ahead, whole_run)


def feed_plan(
    config: RunConfig, total_steps: int, start_step: int, checkpoint: Checkpoint | None, stream: PromptStream
) -> FeedPlan:
    """The plan of a run. One that starts from a checkpoint on the same prompts goes on where that one's serving stood;
    on other prompts its ordinals count batches."""
    size = config.data.train_batch_size
    start, sampling = FeedState(start_step * size), None
    if checkpoint is not None and "feed" in checkpoint.extra and _same_prompts(checkpoint.extra["stream"], stream):
        start = replace(FeedState.from_json(checkpoint.extra["feed"]), replaced=0, owed=0)  # its plan begins anew
        sampling = checkpoint.extra.get("sampler")
    return FeedPlan(size, config.trainer.v1.warmup_batches, total_steps, start_step, start, sampling)


def _same_prompts(state: dict[str, Any], stream: PromptStream) -> bool:
    return {key: value for key, value in state.items() if key != "ordinal"} == stream.identity()


class PromptFeed:
    """Used by the trainer's thread.

    Args:
        stream: prompts by ordinal; nobody else moves it.
        buffer: where groups go. Its `refill` is `replace` of this feed.
        sampling: of the stream's sampler, where it has one.
    """

    def __init__(
        self, stream: PromptStream, plan: FeedPlan, files: FeedFiles, sampling: SamplingBook | None = None
    ) -> None:
        self._stream, self.plan, self._files, self.sampling = stream, plan, files, sampling
        self._step = -1  # the step whose rollout the fields below stand after
        self._next, self._replaced, self._owed = 0, 0, 0
        self._again: list[int] = []
        self._settled: dict[str, Group] = {}

    def take_over(self, step: int, settled: Callable[[], Sequence[Group]]) -> None:
        """Before the rollout of `step`: nothing in the process that did the one before; else read where that stood.

        Args:
            settled: groups that an earlier process kept, in the spool of this step. What the step before trained on
                may be among them: an attempt at it that died had left it over.
        """
        if self.sampling is not None:
            self.sampling.begin(step)
        if self._step == step - 1:
            return
        state = self.state_after(step - 1)
        self._step, self._next, self._replaced, self._owed = step - 1, state.next, state.replaced, state.owed
        self._again = list(state.open)
        found = [group for group in settled() if (at := group.prompt.ordinal) >= state.next or at in state.open]
        self._settled = {group.prompt.base_uid: group for group in found}
        if self.sampling is not None:
            self.sampling.note([group for group in self._settled.values() if group.rewards])

    def state_after(self, step: int) -> FeedState:
        """As recorded."""
        if step <= self.plan.start_step:
            return self.plan.start
        return self._files.feed(step) or self.plan.plain(step)

    def top_up(self, step: int, buffer: ReplayBuffer) -> None:
        """Serve what is still open, then new prompts, as far as the plan and the buffer's room go, then what is owed.
        Once per step."""
        again, self._again = self._again, []
        for ordinal in again:
            self._stream.seek(ordinal)
            self._serve(self._stream.take(1, step), buffer)
        state = FeedState(self._next, replaced=self._replaced)
        missing = self.plan.target(step, state) - self._next
        count = min(missing, buffer.room()) if self.plan.warmup_batches else missing
        if count > 0:
            self._serve(self._new(count, step), buffer)
        buffer.begin_batch(self.plan.batch_size, self.plan.share(step), self._owed)

    def replace(self, count: int) -> list[Prompt]:
        """New prompts in the place of dropped ones; the buffer submits them, for the step whose rollout is under
        way."""
        self._replaced += count
        return self._new(count, self._step + 1)

    def kept(self, prompt: Prompt) -> Group | None:
        """The group that an earlier process finished of this prompt, once."""
        return self._settled.pop(prompt.base_uid, None)

    def close_step(self, step: int, buffer: ReplayBuffer) -> None:
        """The rollout's groups are chosen; record what stays open. Call it before the step's trajectories are
        published."""
        self._step = step
        if not self.plan.warmup_batches:  # what was kept and not asked for is of other weights than the next step's
            self._settled.clear()
        self._owed = buffer.owed
        opened = tuple(prompt.ordinal for prompt in buffer.unclaimed())
        if self.sampling is not None:
            self.sampling.close(step, opened)
        state = FeedState(self._next, opened, self._replaced, self._owed)
        if state != self.plan.plain(step) or self._files.feed(step) is not None:  # an attempt that died left another
            self._files.save_feed(step, state)

    def _new(self, count: int, step: int) -> list[Prompt]:
        self._stream.seek(self._next)
        self._next += count
        return self._stream.take(count, step)

    def _serve(self, prompts: Sequence[Prompt], buffer: ReplayBuffer) -> None:
        fresh = [prompt for prompt in prompts if prompt.base_uid not in self._settled]
        known = [self._settled.pop(prompt.base_uid) for prompt in prompts if prompt.base_uid in self._settled]
        if known:
            buffer.adopt(known, prompts[0].step)
        if fresh:
            buffer.submit(fresh)

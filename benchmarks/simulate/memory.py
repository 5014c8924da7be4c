"""Records of a simulated run, in memory. Invariant: the step under way and nothing older is kept, so that a long run
does not grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from benchmarks.simulate.world import World
from verl_core.batch import TrainBatch
from verl_core.record.step_record import StepRecord
from verl_core.trainer.feed import FeedState
from verl_core.trainer.stage import StageName, StageOutput
from verl_core.trajectory import Reward, Trajectory
from verl_core.transfer.replay_buffer import Group


class MemorySpool:
    """Spool of one step."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def append(self, groups: Sequence[Group]) -> None:
        """Keep."""
        self._groups.update({group.prompt.uid: group for group in groups})

    def read(self) -> list[Group]:
        """All of it."""
        return list(self._groups.values())

    def close(self) -> None:
        """Nothing to close."""


class MemoryFiles:
    """StepFiles without a disk: the step under way, and nothing older."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[StageName, int], StageOutput] = {}
        self._values: dict[tuple[StageName, int], Any] = {}
        self._feeds: dict[int, FeedState] = {}

    def finished(self, stage: StageName, step: int) -> StageOutput | None:
        """See StepFiles."""
        return self._outputs.get((stage, step))

    def first_open_step(self, start: int) -> int:
        """Of a fresh run."""
        return start + 1

    def spool(self, step: int) -> MemorySpool:
        """Of one step; a run that never crashes never reads an old one."""
        return MemorySpool()

    def feed(self, step: int) -> FeedState | None:
        """See StepFiles."""
        return self._feeds.get(step)

    def save_feed(self, step: int, state: FeedState) -> None:
        """See StepFiles."""
        self._feeds = {step: state}

    def save_trajectories(self, step: int, rows: list[Trajectory], metrics: dict[str, float]) -> StageOutput:
        """See StepFiles."""
        return self._keep("rollout", step, rows, metrics)

    def trajectories(self, step: int) -> list[Trajectory]:
        """See StepFiles."""
        rows: list[Trajectory] = self._values["rollout", step]
        return rows

    def save_rewards(self, step: int, rewards: list[Reward], metrics: dict[str, float]) -> StageOutput:
        """See StepFiles."""
        return self._keep("reward", step, rewards, metrics)

    def rewards(self, step: int) -> list[Reward]:
        """See StepFiles."""
        rewards: list[Reward] = self._values["reward", step]
        return rewards

    def save_batch(self, step: int, batch: TrainBatch, metrics: dict[str, float], durable: bool = False) -> StageOutput:
        """See StepFiles."""
        return self._keep("advantage", step, batch, metrics)

    def batch(self, step: int) -> TrainBatch:
        """See StepFiles."""
        batch: TrainBatch = self._values["advantage", step]
        return batch

    def save_record(self, record: StepRecord, metrics: dict[str, float]) -> StageOutput:
        """See StepFiles."""
        return self._keep("update", record.step, record, metrics)

    def metrics(
        self, step: int, stages: Sequence[StageName] = ("rollout", "reward", "advantage", "update")
    ) -> dict[str, float]:
        """See StepFiles."""
        merged: dict[str, float] = {}
        for stage in stages:
            if (done := self.finished(stage, step)) is not None:
                merged.update(done.metrics)
        return merged

    def _keep(self, stage: StageName, step: int, value: Any, metrics: dict[str, float]) -> StageOutput:
        output = StageOutput(stage, step, f"memory/{step}/{stage}", "", metrics)
        self._values = {key: held for key, held in self._values.items() if key[1] == step} | {(stage, step): value}
        self._outputs = {key: out for key, out in self._outputs.items() if key[1] >= step - 1} | {(stage, step): output}
        return output


@dataclass
class MemoryJournal:
    """Ledger of the run, event by event."""

    position: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        """Count."""
        self.counts[event] = self.counts.get(event, 0) + len(uids)


@dataclass
class Recorder:
    """MetricSinks: the numbers of each step, with the virtual time at which it closed."""

    world: World
    closed_at: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """A step is done."""
        self.closed_at.append(self.world.now)
        self.steps.append(dict(metrics))


class NoCheckpoints:
    """The last step saves; there is nothing to save."""

    def save(self, step: int, write: Any, state: dict[str, Any]) -> Any:
        """A name."""
        return SimpleNamespace(path=f"checkpoints/{step}")


def no_lock() -> Any:
    """Nobody else holds a run in memory."""
    return SimpleNamespace(check=lambda: None)


def no_folder() -> Any:
    """RunDir of a run in memory."""
    return SimpleNamespace(root="memory", url=lambda path: f"memory/{path}")

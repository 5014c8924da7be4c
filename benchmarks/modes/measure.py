"""From a finished run's directory to its numbers. Invariant: whatever is compared with a bound comes from the run's
own records and marks; lengths are checked against the draw, token for token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.modes.bounds import BOUNDS, Generators, StepWork, Work
from benchmarks.modes.conditions import Conditions, Run
from benchmarks.modes.one import MARKS, config_of, pace_of
from verl_core.record.accounting import accounting
from verl_core.record.rundir import RunDir
from verl_core.record.step_record import read_metrics
from verl_core.record.trajectories import read_trajectories
from verl_core.rollout.scripted_lengths import LengthDraw, length_draw
from verl_core.trajectory import Trajectory


@dataclass(frozen=True)
class Span:
    """Numbers of a span of steps.

    Attributes:
        samples_per_s: responses trained on in it, per second.
        bound_s: least time for what was sampled and trained in it.
        engine_busy: share of the time in which a server had a request, mean over servers.
        slots_busy: share of the slots' time in which a token that was trained on was sampled.
        trainer_busy: share of the time in which the trainer's devices trained.
        gen_s, paced_s: seconds of the rollout stage and of training.
    """

    wall_s: float
    steps: int
    samples_per_s: float
    bound_s: float
    engine_busy: float
    slots_busy: float
    trainer_busy: float
    gen_s: float
    paced_s: float

    @property
    def of_bound(self) -> float:
        """bound_s / wall_s."""
        return self.bound_s / self.wall_s


@dataclass(frozen=True)
class Measured:
    """A run's numbers.

    Attributes:
        window, whole: steps first + 1 .. last, and all of them.
        discarded_share: of the sampled tokens, those that were not trained on; `dropped` groups by reason.
        staleness: groups by staleness.
        rewards: mean score of each step; `ends` when it was done, seconds since the start.
        load: the machine's load average over a minute, mean over the ends of steps.
    late_s: seconds that the real update took beyond the simulated one.
        real_share: real seconds of training, as a share of the simulated ones.
    """

    run: Run
    window: Span
    whole: Span
    discarded_share: float
    dropped: dict[str, int]
    staleness: dict[int, int]
    rewards: list[float]
    ends: list[float]
    load: float
    late_s: float
    real_share: float

    @property
    def spans(self) -> dict[str, Span]:
        """Both, by name."""
        return {"window": self.window, "whole": self.whole}


def measured(run: Run, conditions: Conditions, root: Path) -> Measured:
    """Read the run.

    Raises:
        RuntimeError: a response does not have the length that was drawn for it.
    """
    folder, total = RunDir(str(root / run.name)), run.total_steps(conditions)
    marks = json.loads((root / run.name / MARKS).read_text())["marks"]
    rows = [read_trajectories(folder, step) for step in range(1, total + 1)]
    draw = length_draw(config_of(run, conditions, root))
    for row in (row for step in rows for row in step):
        _check(row, draw)
    numbers = [read_metrics(folder, step) for step in range(1, total + 1)]
    sampled = sum(account["tokens"] for account in marks[-1]["usage"].values())
    trained = sum(len(row.response_ids) for step in rows for row in step)
    reader = _Reader(run, conditions, marks, rows, numbers)
    first, last = (conditions.first, conditions.last) if total == conditions.steps else (0, total)
    return Measured(
        run=run,
        window=reader.span(first, last),
        whole=reader.span(0, total),
        discarded_share=1 - trained / sampled,
        dropped=accounting(folder).dropped,
        staleness=dict(sorted(_staleness(rows).items())),
        rewards=[row["critic/score/mean"] for row in numbers],
        ends=[mark["wall_s"] for mark in marks[1:]],
        load=fmean(mark["load"] for mark in marks),
        late_s=marks[-1]["late_s"],
        real_share=marks[-1]["real_s"] / marks[-1]["paced_s"],
    )


@dataclass(frozen=True)
class _Reader:
    run: Run
    conditions: Conditions
    marks: Sequence[dict[str, Any]]
    rows: Sequence[Sequence[Trajectory]]
    numbers: Sequence[dict[str, float]]

    def span(self, first: int, last: int) -> Span:
        """From the end of step `first` to the end of step `last`."""
        run, conditions = self.run, self.conditions
        generators = Generators(run.servers(conditions), conditions.slots, conditions.token_s)
        before, after = self.marks[first], self.marks[last]
        wall = after["wall_s"] - before["wall_s"]
        steps = tuple(_step_work(rows) for rows in self.rows[first:last])
        work = Work(sampled_between(self.rows, first, last), steps)
        busy = [after["usage"][name]["busy_s"] - before["usage"][name]["busy_s"] for name in after["usage"]]
        paced = after["paced_s"] - before["paced_s"]
        return Span(
            wall_s=wall,
            steps=last - first,
            samples_per_s=sum(len(step.lengths) for step in steps) / wall,
            bound_s=BOUNDS[run.mode](work, generators, pace_of(run, conditions)),
            engine_busy=fmean(busy) / wall,
            slots_busy=generators.work_s(work.sampled) / wall,
            trainer_busy=paced / wall,
            gen_s=sum(row["timing_s/gen"] for row in self.numbers[first:last]),
            paced_s=paced,
        )


def sampled_between(rows: Sequence[Sequence[Trajectory]], first: int, last: int) -> int:
    """Tokens that were sampled after version `first` was published and before version `last` was, whichever step they
    were trained on in: exact, since each token names the version it was sampled from."""
    segments = (segment for step in rows for row in step for segment in row.segments)
    return sum(segment.length for segment in segments if first <= segment.weight_version < last)


def _step_work(rows: Sequence[Trajectory]) -> StepWork:
    return StepWork(tuple(len(row.response_ids) for row in rows), sum(len(row.prompt_ids) for row in rows))


def _staleness(rows: Sequence[Sequence[Trajectory]]) -> Counter[int]:
    """Groups by (version that trains on them) - (oldest version in them)."""
    found: Counter[int] = Counter()
    for version, step in enumerate(rows):
        oldest: dict[str, int] = {}
        for row in step:
            oldest[row.uid] = min(oldest.get(row.uid, version), row.min_version)
        found.update(version - least for least in oldest.values())
    return found


def _check(row: Trajectory, draw: LengthDraw | None) -> None:
    asked = None if draw is None else draw.of(f"{row.uid}_{row.session}")
    if len(row.response_ids) != asked:
        raise RuntimeError(f"{row.key}: {len(row.response_ids)} tokens, and {asked} were drawn")

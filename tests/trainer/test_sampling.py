"""A sampler's state through crashes, refills and branches: the rows of a run that never stopped."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_stream import rows_of
from tests.transfer.build import prompt_of, trajectory_of
from verl_core.data.sampled_order import SampledOrder
from verl_core.data.samplers.difficulty import DifficultySampler
from verl_core.errors import RecordError
from verl_core.trainer.sampling import SamplingBook, mean_scores
from verl_core.trajectory import Reward
from verl_core.transfer.flight import Group

STEPS, BATCH = 5, 3


class Files:
    """In memory, through JSON."""

    def __init__(self) -> None:
        self.kept: dict[int, str] = {}

    def sampling(self, step: int) -> dict[str, Any] | None:
        return json.loads(self.kept[step]) if step in self.kept else None

    def save_sampling(self, step: int, kept: dict[str, Any]) -> None:
        self.kept[step] = json.dumps(kept)


class Run:
    """Steps of a run whose rewards follow from ordinal and row; each draws `extra` more, for dropped groups."""

    def __init__(self, files: Files, start: tuple[int, Any] = (0, None)) -> None:
        self.files, self.start_step, self.start = files, *start
        self.trained: dict[int, dict[int, float]] = {}
        self.live()

    def live(self) -> None:
        self.order = SampledOrder(DifficultySampler(rows_of(12), seed=2), 12, BATCH)
        self.book = SamplingBook(self.order, self.files, self.start_step, self.start, lambda step: self.trained[step])
        self.step, self.next = self.start_step + 1, None

    def score(self, ordinal: int) -> float:
        return float((self.order.row_of(ordinal) * 7 + ordinal) % 3 / 2)

    def serve(self, step: int, first: int, extra: int) -> list[int]:
        self.book.begin(step)
        return [self.order.row_of(ordinal) for ordinal in range(first, first + BATCH + extra)]

    def finish(self, step: int, first: int, extra: int) -> None:
        dropped = range(first + BATCH, first + BATCH + extra)
        self.book.note([group_of(ordinal, self.score(ordinal)) for ordinal in dropped])
        self.book.close(step, [])
        self.trained[step] = {ordinal: self.score(ordinal) for ordinal in range(first, first + BATCH)}


def group_of(ordinal: int, *scores: float) -> Group:
    prompt = prompt_of(ordinal, n=len(scores))
    rows = [trajectory_of(prompt, session) for session in range(len(scores))]
    return Group(prompt, rows, rewards=tuple(Reward(row.key, s) for row, s in zip(rows, scores, strict=True)))


def whole_run(extras: list[int]) -> Run:
    run, first = Run(Files()), 0
    for step, extra in enumerate(extras, start=1):
        run.serve(step, first, extra)
        run.finish(step, first, extra)
        first += BATCH + extra
    return run


EXTRAS = st.lists(st.integers(0, 2), min_size=STEPS, max_size=STEPS)


@settings(max_examples=40)
@given(EXTRAS, st.randoms(use_true_random=False))
def test_crashes_anywhere_draw_the_same_rows(extras: list[int], dice: random.Random) -> None:
    calm, run, first = whole_run(extras), Run(Files()), 0
    for step, extra in enumerate(extras, start=1):
        while True:
            assert run.serve(step, first, extra) == calm.order.drawn[first : first + BATCH + extra]
            if dice.random() < 0.6:
                break
            run.live()  # it had served, and died
        run.finish(step, first, extra)
        first += BATCH + extra
        if dice.random() < 0.4:
            run.live()
    run.live()
    run.book.recover()  # a stage that only asks for rows
    assert run.order.drawn == calm.order.drawn


@given(EXTRAS, st.integers(1, STEPS - 1))
def test_a_branch_from_a_checkpoint_goes_on_as_its_origin_did(extras: list[int], at: int) -> None:
    calm = whole_run(extras)
    kept = json.loads(json.dumps(calm.book.after(at)))
    before = list(calm.order.drawn)
    branch, first = Run(Files(), (at, kept)), len(kept["rows"])
    for step in range(at + 1, STEPS + 1):
        branch.serve(step, first, extras[step - 1])
        branch.finish(step, first, extras[step - 1])
        first += BATCH + extras[step - 1]
    assert branch.order.drawn == calm.order.drawn == before


def test_what_was_learnt_moves_the_draws_and_is_learnt_once() -> None:
    run = Run(Files())
    run.serve(1, 0, 0)
    run.finish(1, 0, 0)
    run.book.begin(2)
    once = run.order.state()
    run.book.begin(2)  # the rollout is tried again
    assert run.order.state() == once
    assert len(once["sampler"]["solved"]) == len(set(run.order.drawn[:BATCH]))


def test_a_lost_account_is_told() -> None:
    run = whole_run([0, 0, 0])
    del run.files.kept[2]
    run.live()
    with pytest.raises(RecordError, match=r"step 2 left no account of what data.sampler drew"):
        run.book.begin(4)


def test_scores_of_a_group_by_hand() -> None:
    group = group_of(4, 1.0, 0.0, 0.0, 1.0)
    bad = Reward(group.trajectories[1].key, 0.0, {}, "raised", "boom")
    named = Reward(group.trajectories[2].key, -1.0, {"acc": True})
    rewards = [group.rewards[0], bad, named, group.rewards[3]]
    assert mean_scores(group.trajectories, rewards) == {4: 1.0}
    assert mean_scores(group.trajectories, [bad] * 4) == {}
    assert mean_scores(group.trajectories, group.rewards, greedy_session=3) == {4: pytest.approx(1 / 3)}

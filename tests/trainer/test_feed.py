"""The prompt feed against a literal account of ordinals: every one served once, in order, none doubled by a resume."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_stream import rows_of
from tests.transfer.build import trajectory_of
from verl_core.data.stream import PromptStream
from verl_core.trainer.feed import FeedPlan, FeedState, PromptFeed
from verl_core.trajectory import Prompt, Reward
from verl_core.transfer.replay_buffer import Group, ReplayBuffer

BATCH, STEPS = 4, 6


class Files:
    """Feed states in memory."""

    def __init__(self) -> None:
        self.states: dict[int, FeedState] = {}

    def feed(self, step: int) -> FeedState | None:
        return self.states.get(step)

    def save_feed(self, step: int, state: FeedState) -> None:
        self.states[step] = state


class Buffer:
    """What the feed asks of a replay buffer; the oldest groups are done first unless told otherwise."""

    def __init__(self, room: int = 10**6) -> None:
        self.waiting: dict[int, Prompt] = {}
        self.submitted: list[int] = []
        self.adopted: list[int] = []
        self.limit = room
        self.owed = 0
        self.batches: list[tuple[int, int, int]] = []

    def begin_batch(self, size: int, first: int, owed: int) -> None:
        self.batches.append((size, first, owed))

    def room(self) -> int:
        return self.limit - len(self.waiting)

    def submit(self, prompts: Sequence[Prompt]) -> None:
        self.submitted += [prompt.ordinal for prompt in prompts]
        self.waiting |= {prompt.ordinal: prompt for prompt in prompts}

    def adopt(self, groups: Sequence[Group], step: int | None = None) -> None:
        self.adopted += [group.prompt.ordinal for group in groups]
        self.waiting |= {group.prompt.ordinal: group.prompt for group in groups}

    def unclaimed(self) -> list[Prompt]:
        return [self.waiting[ordinal] for ordinal in sorted(self.waiting)]

    def claim(self, ordinals: Sequence[int]) -> list[int]:
        for ordinal in ordinals:
            self.waiting.pop(ordinal)
        return list(ordinals)


class Noted:
    """A sampler's book that only remembers what it is told of."""

    def __init__(self, ordinals: list[int]) -> None:
        self.ordinals = ordinals

    def begin(self, step: int) -> None:
        """Nothing."""

    def note(self, groups: Sequence[Group]) -> None:
        self.ordinals += [group.prompt.ordinal for group in groups]


@pytest.fixture(scope="module")
def stream() -> PromptStream:
    return made_stream()


def made_stream() -> PromptStream:
    return PromptStream(rows_of(40), BATCH, seed=1, shuffle=True, n=2)


def feed_of(stream: PromptStream, files: Files, warmup: float, start: FeedState = FeedState(0)) -> PromptFeed:  # noqa: B008
    return PromptFeed(stream, FeedPlan(BATCH, warmup, STEPS, 0, start), files)


def run_step(feed: PromptFeed, buffer: Buffer, step: int, settled: Sequence[Group] = ()) -> None:
    feed.take_over(step, lambda: settled)
    feed.top_up(step, cast(ReplayBuffer, buffer))


def test_warm_up_is_served_once_and_nothing_after_the_last_step(stream: PromptStream) -> None:
    feed, buffer = feed_of(stream, Files(), 1.5), Buffer()
    served = []
    for step in range(1, STEPS + 1):
        run_step(feed, buffer, step)
        served.append(len(buffer.submitted))
        buffer.claim(sorted(buffer.waiting)[:BATCH])
        feed.close_step(step, cast(ReplayBuffer, buffer))
    assert served == [10, 14, 18, 22, 24, 24]  # 4 step + 6 ahead, never more than the 24 of the run
    assert buffer.submitted == list(range(24))
    assert not buffer.waiting


def test_a_step_without_anything_ahead_leaves_no_file(stream: PromptStream) -> None:
    files, buffer = Files(), Buffer()
    feed = feed_of(stream, files, 0)
    for step in (1, 2):
        run_step(feed, buffer, step)
        buffer.claim(sorted(buffer.waiting))
        feed.close_step(step, cast(ReplayBuffer, buffer))
    assert files.states == {}
    assert feed.state_after(2) == FeedState(8)


def test_what_an_attempt_left_that_died_before_its_trajectories_were_kept_is_forgotten(stream: PromptStream) -> None:
    files, buffer = Files(), Buffer()
    files.states[1] = FeedState(next=5, replaced=1)  # there a group had failed, and another one was served
    feed = feed_of(stream, files, 0)
    run_step(feed, buffer, 1)
    buffer.claim([0, 1, 2, 3])
    feed.close_step(1, cast(ReplayBuffer, buffer))
    assert feed.state_after(1) == FeedState(4)
    later = Buffer()
    run_step(feed_of(made_stream(), files, 0), later, 2)
    assert later.submitted == [4, 5, 6, 7]


def test_back_pressure_limits_what_is_served_ahead(stream: PromptStream) -> None:
    feed, buffer = feed_of(stream, Files(), 2), Buffer(room=6)
    run_step(feed, buffer, 1)
    assert buffer.submitted == list(range(6))
    buffer.claim([0, 1, 2, 3])
    feed.close_step(1, cast(ReplayBuffer, buffer))
    run_step(feed, buffer, 2)
    assert buffer.submitted == list(range(10))


def test_dropped_groups_are_replaced_by_the_next_ordinals(stream: PromptStream) -> None:
    files = Files()
    feed, buffer = feed_of(stream, files, 1), Buffer()
    run_step(feed, buffer, 1)
    assert buffer.submitted == list(range(8))
    buffer.claim([0, 1])  # dropped as stale, say
    buffer.submit(feed.replace(2))
    buffer.claim([2, 3, 4, 5])
    feed.close_step(1, cast(ReplayBuffer, buffer))
    assert files.states[1] == FeedState(next=10, open=(6, 7, 8, 9), replaced=2)
    run_step(feed, buffer, 2)
    assert buffer.submitted[10:] == [10, 11, 12, 13]  # four more, not six


def test_a_new_process_serves_what_was_open_and_adopts_what_was_spooled(stream: PromptStream) -> None:
    files, buffer = Files(), Buffer()
    feed = feed_of(stream, files, 1)
    run_step(feed, buffer, 1)
    prompts = {prompt.ordinal: prompt for prompt in buffer.unclaimed()}
    buffer.claim([1, 3, 5, 7])
    feed.close_step(1, cast(ReplayBuffer, buffer))
    rows = {ordinal: trajectory_of(prompts[ordinal], 0) for ordinal in (2, 5)}  # 5 was trained on
    spooled = [Group(prompts[n], [row], rewards=(Reward(row.key, 1.0),)) for n, row in rows.items()]
    later, again = Buffer(), feed_of(made_stream(), files, 1)
    noted: list[int] = []
    again.sampling = Noted(noted)  # type: ignore[assignment]
    run_step(again, later, 2, spooled)
    assert noted == [2]  # what 5 got is known from the step that trained on it
    assert later.adopted == [2]
    assert later.submitted == [0, 4, 6, 8, 9, 10, 11]  # the open ones, then step 2's share: 12 in all
    assert later.waiting[0].uid == prompts[0].uid


def test_a_branch_serves_what_its_origin_had_open_before_anything_new(stream: PromptStream) -> None:
    origin = FeedState(next=13, open=(9, 11, 12))
    plan = FeedPlan(BATCH, 1, 5, 2, origin)
    feed, buffer = PromptFeed(stream, plan, Files()), Buffer()
    for step in range(3, 6):
        run_step(feed, buffer, step)
        buffer.claim(sorted(buffer.waiting)[:BATCH])
        feed.close_step(step, cast(ReplayBuffer, buffer))
    assert buffer.submitted == [9, 11, 12, *range(13, 22)]  # twelve groups for three steps
    assert not buffer.waiting


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_any_order_of_claims_drops_and_crashes_serves_each_ordinal_once(dice: random.Random, warmup: float) -> None:
    files, stream = Files(), made_stream()
    feed, buffer = feed_of(stream, files, warmup), Buffer()
    trained: list[int] = []
    dropped: list[int] = []
    for step in range(1, STEPS + 1):
        kept = (list(trained), list(dropped))
        while True:
            run_step(feed, buffer, step)
            if warmup and dice.random() < 0.25 and len(dropped) < 10:
                gone = dice.choice(sorted(buffer.waiting))
                dropped += buffer.claim([gone])
                buffer.submit(feed.replace(1))
            if dice.random() < 0.75:
                break
            feed, buffer = feed_of(made_stream(), files, warmup), Buffer()  # a crash before the step's claim was kept
            trained, dropped = list(kept[0]), list(kept[1])
        chosen = dice.sample(sorted(buffer.waiting), BATCH)
        trained += buffer.claim(chosen)
        feed.close_step(step, cast(ReplayBuffer, buffer))
        if dice.random() < 0.5:  # a crash right after
            feed, buffer = feed_of(made_stream(), files, warmup), Buffer()
    assert len(trained) == STEPS * BATCH
    assert sorted(trained + dropped) == list(range(len(trained) + len(dropped)))


def test_states_survive_json() -> None:
    state = FeedState(12, (3, 9), 2, 1)
    assert FeedState.from_json(state.to_json()) == state
    assert FeedState.from_json({"next": 12, "open": [3, 9], "replaced": 2}) == FeedState(12, (3, 9), 2)


def test_what_a_cap_left_unreplaced_is_owed_to_the_next_batch_in_any_process(stream: PromptStream) -> None:
    files, buffer = Files(), Buffer()
    feed = feed_of(stream, files, 1.5)
    for step in range(1, STEPS + 1):
        run_step(feed, buffer, step)
        buffer.claim(sorted(buffer.waiting)[:BATCH])
        buffer.owed = step
        feed.close_step(step, cast(ReplayBuffer, buffer))
        if step == 3:
            feed = feed_of(made_stream(), files, 1.5)
    # the first step is served 6 ahead, so the last two are served 2 and none
    assert buffer.batches == [(4, 10, 0), (4, 4, 1), (4, 4, 2), (4, 4, 3), (4, 2, 4), (4, 0, 5)]

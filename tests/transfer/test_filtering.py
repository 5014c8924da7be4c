"""Dynamic sampling: which groups are constant, that each is scored once, and how much is generated in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.transfer.build import finished_of, prompt_of, trajectory_of
from tests.transfer.world import World
from verl_core.config.schema import BufferConfig
from verl_core.errors import RewardError, RolloutError
from verl_core.trajectory import Prompt, Reward
from verl_core.transfer.constant_groups import constant_groups
from verl_core.transfer.flight import Clock, Group
from verl_core.transfer.refills import Cap
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.staleness import Drop, Unbounded


def group_of(*scores: float | None, parts: Sequence[Any] = (), outputs: int = 1) -> Group:
    """One session per score; None = it could not be scored. Earlier outputs of a session score 9."""
    prompt = prompt_of(0, n=len(scores))
    rows, rewards = [], []
    for session, score in enumerate(scores):
        for index in range(outputs):
            row = trajectory_of(prompt, session, index)
            value = 9.0 + session if index < outputs - 1 else score
            components = {"acc": parts[session]} if parts else {}
            bad = Reward(row.key, 0.0, components, "raised", "boom")
            rows.append(row)
            rewards.append(bad if value is None else Reward(row.key, value, components))
    return Group(prompt, rows, rewards=tuple(rewards))


@pytest.mark.parametrize(
    ("group", "is_constant"),
    [
        (group_of(1.0, 1.0, 1.0), True),
        (group_of(0.1, 0.1, 0.1), True),  # its deviation is 1.4e-17, not 0
        (group_of(1.0, 1.0, 1.0 + 1e-12), False),
        (group_of(0.0, 1.0), False),
        (group_of(1.0, None, 1.0), True),
        (group_of(1.0, None, 0.0), False),
        (group_of(1.0, None), False),  # nothing to compare: kept, and counted by the error budget
        (group_of(None, None), False),
        (group_of(1.0, 1.0, outputs=2), True),  # the last output of a session counts
        (group_of(0.0, 1.0, outputs=2), False),
        (replace(group_of(1.0, 1.0), rewards=()), False),  # not scored: too old anyway
    ],
)
@pytest.mark.parametrize("metric", ["reward", "score", "seq_reward"])
def test_which_groups_are_constant(group: Group, is_constant: bool, metric: str) -> None:
    assert bool(constant_groups(metric)([group])) is is_constant


def test_a_part_of_the_reward_may_be_what_counts() -> None:
    rejects = constant_groups("acc")
    assert rejects([group_of(0.2, 0.9, parts=[True, True])]) == {
        prompt_of(0).uid: "constant: acc is 1 in all 2 sessions"
    }
    assert not rejects([group_of(1.0, 1.0, parts=[0, 1])])
    for parts in ([], ["yes", "no"], [float("nan"), 1.0]):
        with pytest.raises(RewardError, match=r"algorithm.filter_groups.metric names 'acc', and the reward of"):
            rejects([group_of(1.0, 1.0, parts=parts)])


class Filtered(World):
    """A world whose buffer scores: group `ordinal` gets 1 in all sessions where `constant` has it."""

    def __init__(self, constant: set[int], cap: Cap, **settings: Any) -> None:
        self.constant, self.cap = constant, cap
        self.scored: list[int] = []
        self.kept: dict[str, Group] = {}
        super().__init__(settings.pop("policy", Unbounded(2)), 100, (constant_groups("score"),), **settings)
        self.on_dispatch = lambda prompt: self.store.after(1, lambda: self.store.finish([finished_of(prompt)]))

    def new_buffer(self) -> ReplayBuffer:
        clock = Clock(lambda: self.store.now, lambda: self.store.now)
        return ReplayBuffer(
            self.store,
            BufferConfig(lease_s=60.0, stall_timeout_s=300.0),
            self._dispatch,
            self.book,
            lambda prompt: prompt,
            clock,
            self.policy,
            self._refill,
            self.filters,
            score=self.score,
            kept=lambda prompt: self.kept.pop(prompt.base_uid, None),
            cap=self.cap,
        )

    def score(self, groups: Sequence[Group]) -> list[Group]:
        self.scored += [group.prompt.ordinal for group in groups]
        return [self.with_rewards(group) for group in groups]

    def with_rewards(self, group: Group) -> Group:
        flat = group.prompt.ordinal in self.constant
        rewards = [Reward(row.key, float(flat or row.session)) for row in group.trajectories]
        return replace(group, rewards=tuple(rewards))


def ordinals(groups: Sequence[Group]) -> list[int]:
    return [group.prompt.ordinal for group in groups]


def test_constant_groups_are_replaced_until_the_batch_is_full_and_all_are_told_of_once() -> None:
    world = Filtered({0, 100, 101}, Cap(3))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    told: list[int] = []
    groups = world.buffer.sample(2, 1, lambda fresh: told.extend(ordinals(fresh)))
    assert ordinals(groups) == [1, 102]
    assert world.refilled == [1, 1, 1]
    assert sorted(told) == sorted(world.scored) == [0, 1, 100, 101, 102]  # the dropped ones are kept too
    assert [reward.score for reward in groups[0].rewards] == [0.0, 1.0]
    assert world.buffer.accounting().dropped == {"constant": 3}
    assert {detail["reason"] for _, detail in world.book.of("dropped")} == {"constant: score is 1 in all 2 sessions"}
    assert world.buffer.drops().by_reason == {"constant": 3}
    world.buffer.clear(groups)
    world.check()


def test_at_the_cap_the_run_ends_and_the_error_names_it() -> None:
    world = Filtered(set(range(200)) - {1}, Cap(2))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    with pytest.raises(
        RolloutError, match=r"step 1: 2 x 2 groups .*filter_groups.max_num_gen_batches=2 allows, and 1 of 2"
    ):
        world.buffer.sample(2, 1)
    assert sum(world.refilled) == 2  # with the first two: two batches
    world.check()


def test_at_the_cap_what_is_there_may_be_trained_on_and_the_next_batch_starts_anew() -> None:
    world = Filtered(set(range(200)) - {1, 11}, Cap(2, "train"))
    for step, first in ((1, 0), (2, 10)):
        world.buffer.submit([prompt_of(first), prompt_of(first + 1)])
        groups = world.buffer.sample(2, step)
        assert ordinals(groups) == [first + 1]
        assert sum(world.refilled) == 2 * step
        world.buffer.clear(groups)
    world.check()


def test_a_cap_of_one_generates_nothing_in_their_place() -> None:
    world = Filtered({0}, Cap(1, "train"))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    assert ordinals(world.buffer.sample(2, 1)) == [1]
    assert world.refilled == []


def test_without_a_cap_rejections_end_the_run_only_in_a_row() -> None:
    often = Filtered(set(range(200)) - {105, 112}, Cap())  # seven, then six: less than four batches of two
    often.buffer.submit([prompt_of(1), prompt_of(2)])
    assert ordinals(often.buffer.sample(2, 1)) == [105, 112]
    never = Filtered(set(range(200)), Cap())
    never.buffer.submit([prompt_of(1), prompt_of(2)])
    with pytest.raises(RolloutError, match="8 groups in a row were dropped and none could be trained on"):
        never.buffer.sample(2, 1)


def test_stale_groups_are_not_scored_and_counting_scores_only_once() -> None:
    world = Filtered({1}, Cap(3), policy=Drop(2, 1))
    world.store.finish([finished_of(prompt_of(0), versions=(0,))])  # at step 5 it is four versions old
    world.buffer.submit([prompt_of(0), prompt_of(1), prompt_of(2)])
    world.store.pass_time(1)
    assert world.buffer.sampleable(5) == 1
    assert sorted(world.scored) == [1, 2]
    assert ordinals(world.buffer.sample(2, 5)) == [2, 100]
    assert sorted(world.scored) == [1, 2, 100, 101]
    assert world.buffer.drops().by_reason == {"stale": 1, "constant": 1}


def test_refills_that_an_earlier_process_finished_are_neither_generated_nor_scored_again() -> None:
    world = Filtered({0, 100}, Cap(3))
    for ordinal in (100, 101):
        prompt = prompt_of(ordinal)
        rows = [trajectory_of(prompt, session) for session in range(2)]
        world.kept[prompt.base_uid] = world.with_rewards(Group(prompt, rows))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    assert ordinals(world.buffer.sample(2, 1)) == [1, 101]
    assert [prompt.ordinal for batch in world.dispatched for prompt in batch] == [0, 1]
    assert sorted(world.scored) == [0, 1]
    world.check()


def test_a_kept_group_that_could_not_be_scored_is_scored_again_and_told_of_again() -> None:
    world = Filtered(set(), Cap())
    prompts = [prompt_of(0), prompt_of(1)]
    kept = [Group(prompt, [trajectory_of(prompt, session) for session in range(2)]) for prompt in prompts]
    bad = tuple(Reward(row.key, 0.0, {}, "raised", "the service was down") for row in kept[0].trajectories)
    world.buffer.adopt([replace(kept[0], rewards=bad), world.with_rewards(kept[1])], 1)
    told: list[int] = []
    groups = world.buffer.sample(2, 1, lambda fresh: told.extend(ordinals(fresh)))
    assert world.scored == told == [0]  # so that the spool holds what it got now
    assert [reward.status for group in groups for reward in group.rewards] == ["ok"] * 4


def test_the_seconds_of_scoring_are_nobodys_stall() -> None:
    world = Filtered(set(), Cap())
    world.on_dispatch = lambda prompt: world.store.after(
        1 + 450 * prompt.ordinal, lambda: world.store.finish([finished_of(prompt)])
    )
    score = world.score

    def slowly(groups: Sequence[Group]) -> list[Group]:
        world.store.pass_time(400.0)  # longer than stall_timeout_s and lease_s
        return score(groups)

    world.score = slowly  # type: ignore[method-assign]
    world.buffer = world.new_buffer()
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    assert ordinals(world.buffer.sample(2, 1)) == [0, 1]
    assert world.buffer.accounting().reissued == 0


def test_groups_that_were_scored_while_somebody_counted_are_told_of_by_the_next_wait() -> None:
    world = Filtered({0}, Cap(2))
    world.buffer.submit([prompt_of(0), prompt_of(1), prompt_of(2)])
    world.store.pass_time(1)
    assert world.buffer.sampleable(1) == 2
    told: list[int] = []
    assert world.buffer.wait_for(1, 1, lambda fresh: told.extend(ordinals(fresh))) >= 1
    assert sorted(told)[:3] == [0, 1, 2]  # the dropped one too


def test_rejections_in_a_row_are_counted_in_batches_not_in_groups_that_somebody_waits_for() -> None:
    world = Filtered(set(range(200)) - {105}, Cap(), policy=Unbounded(2))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    assert world.buffer.wait_for(1, 1) >= 1  # seven in a row: less than four batches of two


def test_when_nothing_at_all_passed_there_is_nothing_to_train_on() -> None:
    world = Filtered(set(range(200)), Cap(1, "train"))
    world.buffer.submit([prompt_of(0), prompt_of(1)])
    with pytest.raises(RolloutError, match=r"max_num_gen_batches=1 allows, and 0 of 2 .* Raise it, or give prompts"):
        world.buffer.sample(2, 1)


def test_an_error_for_too_few_groups_says_that_samples_could_not_be_scored() -> None:
    """Groups may look alike because the function fails on all others."""

    class Failing(Filtered):
        def with_rewards(self, group: Group) -> Group:
            rewards = [Reward(row.key, 0.0) for row in group.trajectories]
            rewards[0] = replace(rewards[0], status="raised", reason="boom")
            return replace(group, rewards=tuple(rewards))

        def _refill(self, count: int) -> list[Prompt]:
            return [replace(prompt, n=3) for prompt in super()._refill(count)]

    for cap in (Cap(2), Cap()):  # the cap, and four batches in a row
        world = Failing(set(), cap)
        world.buffer.submit([prompt_of(0, n=3), prompt_of(1, n=3)])
        with pytest.raises(RolloutError, match=r"of \d+ samples of dropped groups could not be scored.*_0_0: boom"):
            world.buffer.sample(2, 1)

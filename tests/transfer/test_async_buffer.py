"""What the asynchronous modes ask of the replay buffer: evict, refill, adopt, pause, back-pressure; and who starves."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.transfer.build import failed_of, finished_of, prompt_of, tag_of, uid_of
from tests.transfer.world import World
from verl_core.errors import DeadlineExceeded, RolloutError, StoreError
from verl_core.trajectory import Prompt
from verl_core.transfer.drops import Drops
from verl_core.transfer.flight import Group
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.staleness import NO_BOUND, Admission, Drop, Unbounded, Wait


def served(world: World, ordinals: Sequence[int], version: int | None = None, step: int = 1) -> list[Prompt]:
    """Submit groups; those of a `version` have finished, sampled by it alone."""
    prompts = [prompt_of(ordinal, step=step) for ordinal in ordinals]
    world.buffer.submit(prompts)
    if version is not None:
        world.store.finish([finished_of(prompt, versions=(version,)) for prompt in prompts])
    return prompts


def group_of(world: World, prompt: Prompt, version: int) -> Group:
    """A group as a spool would give it back."""
    (tag,) = world.store.finish([finished_of(prompt, versions=(version,))])
    rows = world.store.fetch([tag.manifest])
    world.store.clear_groups([prompt.uid])
    world.store.clear_rows([prompt.uid])
    world.store.wait(0.0)
    return Group(prompt, rows)


def ordinals(groups: Sequence[Group]) -> list[int]:
    return [group.prompt.ordinal for group in groups]


# ---- evict and refill


def test_stale_groups_are_dropped_refilled_and_never_announced() -> None:
    world = World(policy=Drop(2, 1), first_refill=100)
    served(world, [0, 1], version=0)
    served(world, [2], version=3, step=4)
    world.step = 5
    world.on_dispatch = lambda prompt: world.store.after(3, lambda: world.store.finish([done(prompt, 4)]))
    announced: list[int] = []
    groups = world.buffer.sample(3, 5, lambda arrived: announced.extend(ordinals(arrived)))
    assert ordinals(groups) == [2, 100, 101]
    assert sorted(announced) == [2, 100, 101]
    assert world.refilled == [2]
    assert world.book.of("dropped") == [
        (
            (uid_of(0), uid_of(1)),
            {
                "base_uids": [uid_of(0), uid_of(1)],
                "step": 5,
                "reason": "stale: 4 versions, threshold 1",
                "errors": [],
            },
        )
    ]
    assert set(world.store.tags()) == set()
    assert set(world.store._rows) == {group.prompt.uid for group in groups}
    world.check()


def done(prompt: Prompt, version: int) -> object:
    return finished_of(prompt, versions=(version,))


def test_without_a_refill_a_sample_of_stale_groups_is_smaller() -> None:
    world = World(policy=Drop(2, 1))
    served(world, [0, 1], version=0)
    served(world, [2], version=4)
    assert ordinals(world.buffer.sample(3, 5)) == [2]
    assert world.buffer.accounting().dropped == {"stale": 2}
    world.check()


def test_the_oldest_version_counts_not_the_time_of_dispatch() -> None:
    """Group 0 was sent out long ago and waited in a queue; group 1 began at once and was cut twice."""
    world = World(policy=Drop(1, 1))
    zero, one = served(world, [0, 1], step=1)
    world.store.finish([finished_of(zero, versions=(5,)), finished_of(one, versions=(1, 3, 5))])
    assert ordinals(world.buffer.sample(2, 6)) == [0]
    assert world.buffer.accounting().dropped == {"stale": 1}


def test_wait_drops_what_a_worker_of_an_earlier_process_began_too_long_ago() -> None:
    """Served for step 4, yet sampled by version 0: whoever runs it got it before a crash, under the same uid."""
    world = World(policy=Wait(2, 1), first_refill=100)
    world.on_dispatch = lambda prompt: world.store.after(
        1, lambda: world.store.finish([finished_of(prompt, versions=(0 if prompt.ordinal == 0 else 3,))])
    )
    served(world, [0, 1], step=4)
    assert ordinals(world.buffer.sample(2, 4)) == [1, 100]
    assert world.buffer.accounting().dropped == {"stale": 1}
    world.check()


def test_what_is_dropped_after_a_batch_was_claimed_belongs_to_the_next_step() -> None:
    """The journal's word decides: a process that takes over after step 1 serves that group again."""
    world = World(policy=Unbounded(1), max_reissues=0, lease_s=60.0)
    served(world, [0], version=0)
    (late,) = served(world, [1])
    world.store.write_tags([tag_of(late, GroupStatus.RUNNING)])
    assert ordinals(world.buffer.sample(1, 1)) == [0]
    world.buffer.collect()  # its lease begins
    world.store.pass_time(61.0)
    world.buffer.collect()
    assert [(uids, detail["step"]) for uids, detail in world.book.of("dropped")] == [((late.uid,), 2)]


def test_a_group_that_failed_for_good_is_refilled_in_asynchronous_modes() -> None:
    world = World(policy=Wait(2, 1), first_refill=100, max_reissues=1)

    def work(prompt: Prompt) -> None:
        result = failed_of(prompt, 0) if prompt.ordinal == 0 else finished_of(prompt, versions=(0,))
        world.store.after(1, lambda: world.store.finish([result]))

    world.on_dispatch = work
    served(world, [0, 1])
    assert ordinals(world.buffer.sample(2, 1)) == [1, 100]
    account = world.buffer.accounting()
    assert (account.dropped, account.reissued, world.refilled) == ({"failed": 1}, 1, [1])
    world.check()


def test_two_reasons_are_two_counts_one_drop_and_one_refill() -> None:
    def flat(groups: Sequence[Group]) -> Mapping[str, str]:
        return {group.prompt.uid: "no spread: all 1.0" for group in groups if group.prompt.ordinal in (0, 1)}

    world = World(policy=Drop(2, 1), first_refill=100, filters=[flat])
    served(world, [0], version=0)  # stale and flat
    served(world, [1], version=4)  # flat
    served(world, [2], version=0)  # stale
    world.on_dispatch = lambda prompt: world.store.after(1, lambda: world.store.finish([done(prompt, 4)]))
    assert ordinals(world.buffer.sample(3, 5)) == [100, 101, 102]
    assert world.refilled == [3]
    drops = world.buffer.drops()
    assert (drops.groups, drops.by_reason) == (3, {"stale": 2, "no spread": 2})
    account = world.buffer.accounting()
    assert account.dropped == {
        "stale": 2,
        "no spread": 1,
    }
    world.check()


def test_what_is_served_in_place_of_a_stale_group_may_be_stale_itself() -> None:
    """The refill's uid has settled in an earlier process, of which this buffer knows nothing."""
    world = World(policy=Drop(1, 1), first_refill=100)
    world.step = 6
    world.store.finish([finished_of(prompt_of(100), versions=(1,))])
    served(world, [0], version=0)
    world.store.after(1, lambda: world.store.finish([finished_of(prompt_of(101), versions=(5,))]))
    assert ordinals(world.buffer.sample(1, 6)) == [101]
    assert world.refilled == [1, 1]


@pytest.mark.parametrize("reject", [True, False])
def test_groups_that_are_dropped_without_end_end_the_run(reject: bool) -> None:
    """A broken agent, or a filter that nothing passes: each drop is refilled, and each refill settles in time."""
    rejects_all = [lambda groups: {group.prompt.uid: "flat" for group in groups}]
    world = World(Unbounded(2), 100, rejects_all if reject else (), max_reissues=0)
    work = finished_of if reject else failed_of
    world.on_dispatch = lambda prompt: world.store.after(1, lambda: world.store.finish([work(prompt)]))
    served(world, [0, 1])
    with pytest.raises(RolloutError, match="8 groups in a row were dropped"):
        world.buffer.sample(2, 1)
    world.check()


def test_stale_groups_alone_never_end_the_run() -> None:
    world = World(policy=Drop(1, 0), first_refill=100)
    served(world, list(range(20)), version=0)
    world.on_dispatch = lambda prompt: world.store.after(1, lambda: world.store.finish([done(prompt, 8)]))
    assert ordinals(world.buffer.sample(1, 9)) == [100]


# ---- adopt


def test_adopted_groups_have_arrived_are_not_dispatched_and_not_announced_again() -> None:
    world = World(policy=Wait(2, 2), first_refill=100)
    world.buffer.adopt([group_of(world, prompt_of(3), 0), group_of(world, prompt_of(1), 1)])
    assert world.dispatched == []
    assert ordinals(world.buffer.arrived_groups()) == [1, 3]
    assert world.buffer.accounting().served == world.buffer.accounting().arrived == 2
    served(world, [4], version=1)
    announced: list[int] = []
    groups = world.buffer.sample(2, 2, lambda arrived: announced.extend(ordinals(arrived)))
    assert (ordinals(groups), announced) == ([1, 3], [])  # the oldest came first: nobody looked for the other yet
    world.buffer.clear(groups)
    world.check()
    assert [event for event, _, _ in world.book.events] == ["adopted", "served", "claimed", "trained"]


def test_a_group_is_adopted_or_submitted_once_under_whatever_attempt() -> None:
    world = World()
    kept = group_of(world, prompt_of(1, attempt=1), 0)
    world.buffer.adopt([kept])
    for again in (lambda: world.buffer.submit([prompt_of(1)]), lambda: world.buffer.adopt([kept])):
        with pytest.raises(StoreError, match="twice"):
            again()
    with pytest.raises(StoreError, match="twice"):
        world.buffer.adopt([group_of(world, prompt_of(2), 0), group_of(world, prompt_of(2, 1), 0)])
    assert world.dispatched == []
    world.check()


def test_what_the_store_still_has_of_an_adopted_group_is_forgotten_with_it() -> None:
    """The process died after the group was spooled; a worker even finishes another attempt of it."""
    world = World()
    world.store.finish([finished_of(prompt_of(1))])
    kept = Group(prompt_of(1), world.store.fetch([world.store.tags()[uid_of(1)].manifest]))
    world.buffer.adopt([kept])
    world.store.finish([finished_of(prompt_of(1, attempt=1))])
    world.buffer.collect()
    world.buffer.clear(world.buffer.sample(1, 1))
    assert (world.store.tags(), world.store._rows) == ({}, {})


def test_a_group_is_asked_again_as_an_attempt_that_no_earlier_process_made() -> None:
    """What that one left would be as old as it is."""
    world = World()
    world.buffer.submit([prompt_of(1)])
    world.store.finish([failed_of(prompt_of(1)), finished_of(prompt_of(1, attempt=1))])
    world.store.after(1, lambda: world.store.finish([finished_of(prompt_of(1, attempt=2))]))
    (group,) = world.buffer.sample(1, 1)
    assert (group.prompt.attempt, world.store.tags()) == (2, {})
    assert set(world.store._rows) == {group.prompt.uid}
    world.check()


@pytest.mark.parametrize("spooled", [True, False])
def test_what_a_step_that_is_done_over_left_behind_is_sampled_anew_when_it_would_grow_too_old(spooled: bool) -> None:
    """Group 1 took a dropped group's place in an earlier process, which died. Now its turn comes later, under version
    2: with one batch ahead it may wait one more step, but the group that must be trained next is there already."""
    world = World(policy=Wait(1, 1))
    world.buffer.submit([prompt_of(0, step=2)])
    left = group_of(world, prompt_of(1, step=2), 1)
    world.store.finish([finished_of(prompt_of(0, step=2), versions=(1,))])
    if spooled:
        world.buffer.adopt([left], step=3)
    else:
        world.store.finish([finished_of(prompt_of(1, step=2), versions=(1,))])
        world.buffer.submit([prompt_of(1, step=3)])
    assert [prompt.uid for prompt in world.dispatched[-1]] == [uid_of(1, attempt=1)]
    assert uid_of(1) not in world.store.tags()
    world.check()
    world.store.after(1, lambda: world.store.finish([finished_of(prompt_of(1, 1), versions=(2,))]))
    assert ordinals(world.buffer.sample(1, 3)) == [0]
    assert ordinals(world.buffer.sample(1, 4)) == [1]
    young = World(policy=Wait(2, 1))  # a batch of two: both fit
    young.buffer.submit([prompt_of(0, step=2)])
    young.buffer.adopt([left], step=3)
    assert len(young.dispatched) == 1


# ---- sampleable, unclaimed, wait_for, abandon


def test_sampleable_counts_what_could_be_claimed_and_claims_nothing() -> None:
    world = World(policy=Drop(2, 1), first_refill=100)
    served(world, [0], version=0)
    served(world, [1, 2], version=3)
    served(world, [3])
    assert world.buffer.sampleable(1) == 3
    assert world.buffer.sampleable(5) == 2
    assert world.store.now == 1000.0
    assert world.buffer.accounting().arrived == 3
    assert world.buffer.wait_for(2, 5) == 2
    assert world.refilled == [1]
    assert [prompt.ordinal for prompt in world.buffer.unclaimed()] == [1, 2, 3, 100]
    world.check()


def test_abandoned_groups_are_dropped_with_the_reason_and_leave_nothing() -> None:
    world = World(policy=Unbounded(1))
    served(world, [0, 1], version=0)
    served(world, [2])
    world.buffer.clear(world.buffer.sample(1, 1))
    assert world.buffer.abandon("the run is over") == 2
    assert world.buffer.accounting().dropped == {"the run is over": 2}
    assert world.book.of("dropped")[0][1]["step"] == 2  # after step 1: a longer run takes them up again
    assert (world.store.tags(), world.store._rows) == ({}, {})
    world.store.finish([finished_of(prompt_of(2))])
    world.buffer.collect()
    assert (world.store.tags(), world.store._rows) == ({}, {})
    world.check()


# ---- pause


def test_leases_stand_still_while_the_servers_sleep() -> None:
    world = World(lease_s=60.0)
    (prompt,) = served(world, [0])
    world.store.write_tags([tag_of(prompt, GroupStatus.RUNNING)])
    world.buffer.collect()
    world.store.pass_time(50.0)
    world.buffer.pause()
    world.buffer.pause()
    world.store.pass_time(10_000.0)
    world.buffer.collect()
    world.buffer.resume()
    world.buffer.resume()
    world.store.pass_time(9.0)
    world.buffer.collect()
    assert world.buffer.accounting().expired == 0  # 59 s of service
    world.store.pass_time(1.0)
    world.buffer.collect()
    assert world.buffer.accounting().expired == 1


def test_nothing_is_waited_for_while_the_servers_sleep() -> None:
    world = World()
    served(world, [0], version=0)
    served(world, [1])
    world.buffer.pause()
    assert ordinals(world.buffer.sample(1, 1)) == [0]
    with pytest.raises(StoreError, match=r"call resume\(\) first"):
        world.buffer.sample(1, 1)
    assert world.store.now == 1000.0
    world.check()


# ---- nothing waits for ever


def test_waiting_for_a_group_that_would_grow_too_old_names_it_when_it_is_stuck() -> None:
    """Enough groups have arrived; the one that the bound demands never does."""
    world = World(policy=Wait(1, 1), lease_s=1e6, stall_timeout_s=50.0)
    served(world, [0], step=1)
    served(world, [1], version=1, step=2)
    with pytest.raises(DeadlineExceeded, match="any group to finish") as caught:
        world.buffer.sample(1, 2)
    assert 1050.0 <= world.store.now < 1052.0
    assert f"wait waits for 1 groups that would grow too old: {uid_of(0)}" in caught.value.state
    assert f"{uid_of(0)} (ordinal 0, attempt 0) pending for 50 s" in caught.value.state
    world.check()


def test_a_group_that_is_waited_for_and_lost_is_asked_again_and_is_young_again() -> None:
    world = World(policy=Wait(1, 1), lease_s=60.0)
    served(world, [0], step=1)
    served(world, [1], version=1, step=2)
    assert ordinals(world.buffer.sample(1, 2)) == [1]  # the lease ran out: attempt 1 begins under version 1
    assert 1060.0 <= world.store.now < 1062.0
    assert world.buffer.accounting().reissued == 1


# ---- back-pressure


def test_room_is_what_the_policy_the_groups_and_the_bytes_leave() -> None:
    assert World().buffer.room() == NO_BOUND
    world = World(policy=Admission(2, 1))
    served(world, [0], version=0)
    served(world, [1])
    assert world.buffer.room() == 2
    world = World(policy=Unbounded(2), max_groups=5)
    served(world, [0, 1], version=0)
    served(world, [2])
    world.buffer.collect()
    assert world.buffer.room() == 2
    served(world, [3, 4, 5])  # nobody asked
    assert world.buffer.room() == 0


def test_room_by_bytes_leaves_space_for_what_is_open_and_never_stops_a_batch() -> None:
    world = World(policy=Unbounded(2), max_megabytes=1)
    big = finished_of(prompt_of(0, n=1), length=20_000)
    world.buffer.submit([prompt_of(0, n=1)])
    world.store.finish([big])
    world.buffer.collect()
    row = big.trajectories[0]
    arrays = (row.prompt_ids, row.response_ids, row.response_mask, row.rollout_log_probs)
    size = sum(np.asarray(array).size * np.asarray(array).itemsize for array in arrays)  # 180 kB
    fit = (2**20 - size) // size  # further groups of that size
    assert world.buffer.room() == fit == 4
    served(world, [1, 2, 3])
    assert world.buffer.room() == fit - 3
    for ordinal in range(4, 10):
        world.buffer.submit([prompt_of(ordinal, n=1)])
        world.store.finish([finished_of(prompt_of(ordinal, n=1), length=20_000)])
    world.buffer.collect()
    assert world.buffer.room() == 0
    world.buffer.sample(7, 1)  # all that arrived; three are open
    assert world.buffer.room() == NO_BOUND  # nothing in memory to learn a size from
    full = World(policy=Unbounded(4), max_megabytes=1)
    full.buffer.submit([prompt_of(0, n=1)])
    full.store.finish([finished_of(prompt_of(0, n=1), length=200_000)])
    full.buffer.collect()
    assert full.buffer.room() == 3  # over the limit, but a batch must be able to form


# ---- who starves


def test_the_drop_share_by_length_shows_that_the_long_ones_starve() -> None:
    world = World(policy=Drop(4, 1), first_refill=None)
    for ordinal in range(8):
        served(world, [ordinal])
        version = 0 if ordinal >= 6 else 4  # the longest two took too long
        world.store.finish([finished_of(prompt_of(ordinal), length=10 * (ordinal + 1), versions=(version,))])
    world.buffer.clear(world.buffer.sample(8, 5))
    drops = world.buffer.drops()
    assert drops.share_by_length == (0.0, 0.0, 0.0, 1.0)
    assert drops.metrics() == {
        "buffer/dropped": 2.0,
        "buffer/dropped/stale": 2.0,
        "buffer/drop_share/length_q1": 0.0,
        "buffer/drop_share/length_q2": 0.0,
        "buffer/drop_share/length_q3": 0.0,
        "buffer/drop_share/length_q4": 1.0,
    }
    assert world.buffer.drops().groups == 0  # since the last call


@pytest.mark.parametrize("longest", [30, 5000])
def test_quarters_against_sorting_all_lengths(longest: int) -> None:
    """Exact up to 64 tokens, within the width of a bin (1/32) above."""
    generator, drops = random.Random(longest), Drops()
    lengths = [min(longest, int(generator.lognormvariate(3.0, 1.2))) for _ in range(4000)]
    dropped = [generator.random() < length / longest for length in lengths]
    for length, is_dropped in zip(lengths, dropped, strict=True):
        drops.arrive(length)
        if is_dropped:
            drops.drop(("stale: 1 versions, threshold 0",), length)
        else:
            drops.train(length)
    found = drops.summary()
    ranks = sorted(lengths)
    share = [0.0] * 4
    for length, is_dropped in zip(lengths, dropped, strict=True):  # equal lengths share a border evenly
        places = [rank // 1000 for rank in range(bisect_left(ranks, length), bisect_right(ranks, length))]
        for quarter in places:
            share[quarter] += is_dropped / len(places)
    totals = [a + b for a, b in zip(found.dropped_by_length, found.trained_by_length, strict=True)]
    assert found.groups == sum(dropped)
    assert totals == pytest.approx([1000.0] * 4)
    assert list(found.dropped_by_length) == pytest.approx(share, abs=1e-6 if longest < 64 else 10.0)
    assert len(drops._all) < 250  # memory

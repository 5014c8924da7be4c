"""The replay buffer in a world whose time is a number."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.transfer.build import (
    failed_of,
    finished_of,
    prompt_of,
    reissue,
    same,
    tag_of,
    trajectory_of,
    uid_of,
)
from tests.transfer.world import World
from verl_core.errors import DeadlineExceeded, StoreError, StreamFailed
from verl_core.trajectory import Prompt
from verl_core.transfer.codec import pack
from verl_core.transfer.flight import Clock, Group
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.interface import Finished
from verl_core.transfer.replay_buffer import ReplayBuffer


def run(world: World, prompt: Prompt) -> None:
    world.store.write_tags([tag_of(prompt, GroupStatus.RUNNING, owner="agent-3")])


def test_submit_opens_pending_tags_then_dispatches_once() -> None:
    world = World()
    prompts = [prompt_of(i) for i in range(4)]
    world.buffer.submit(prompts)
    assert world.dispatched == [prompts]
    tags = world.store.tags()
    assert {tag.status for tag in tags.values()} == {GroupStatus.PENDING}
    assert tags[uid_of(2)].updated == 1000.0
    (served,) = world.book.of("served")
    assert served == (tuple(uid_of(i) for i in range(4)), {"base_uids": [uid_of(i) for i in range(4)], "step": 1})
    assert world.buffer.accounting().pending == 4
    world.check()


def test_groups_come_by_ordinal_whatever_order_they_finish_in() -> None:
    world = World()
    prompts = [prompt_of(i) for i in (5, 1, 9, 3)]
    world.buffer.submit(prompts)
    for delay, prompt in zip((3, 9, 1, 2), prompts, strict=True):
        world.store.after(delay, lambda prompt=prompt: world.store.finish([finished_of(prompt)]))
    batches: list[list[int]] = []
    groups = world.buffer.sample(4, 1, lambda arrived: batches.append([group.prompt.ordinal for group in arrived]))
    assert [group.prompt.ordinal for group in groups] == [1, 3, 5, 9]
    assert batches == [[9], [3], [5], [1]]  # as they arrive, each once
    assert world.store.now == 1009.0  # woken, not polled
    assert all(same(a, b) for a, b in zip(groups[0].trajectories, finished_of(prompt_of(1)).trajectories, strict=True))
    assert world.store.tags() == {}  # claimed
    assert world.buffer.accounting().claimed == 4
    world.check()
    world.buffer.clear(groups)
    assert world.store._rows == {}
    assert world.buffer.accounting().trained == 4
    assert world.book.of("claimed")[0][1]["step"] == world.book.of("trained")[0][1]["step"] == 1
    world.check()


def test_a_sample_takes_the_lowest_ordinals_of_what_arrived_and_leaves_the_rest() -> None:
    world = World()
    world.buffer.submit([prompt_of(i) for i in range(5)])
    world.store.finish([finished_of(prompt_of(i)) for i in (4, 2, 3)])
    seen: list[int] = []
    first = world.buffer.sample(2, 1)
    assert [group.prompt.ordinal for group in first] == [2, 3]
    world.store.finish([finished_of(prompt_of(0))])
    second = world.buffer.sample(2, 2, lambda arrived: seen.extend(group.prompt.ordinal for group in arrived))
    assert [group.prompt.ordinal for group in second] == [0, 4]
    assert sorted(seen) == [0, 4]  # the left-over is announced to the first callback there is
    world.check()


def test_the_poll_finds_what_the_doorbell_lost_and_happens_only_then() -> None:
    world = World(poll_s=7.0)
    world.store.deaf = True
    world.buffer.submit([prompt_of(1)])
    world.store.after(3, lambda: world.store.finish([finished_of(prompt_of(1))]))
    assert len(world.buffer.sample(1, 1)) == 1
    assert world.store.now == 1007.0
    heard = World(poll_s=7.0)
    heard.buffer.submit([prompt_of(i) for i in range(50)])
    for i in range(50):
        heard.store.after(0.1 * i, lambda i=i: heard.store.finish([finished_of(prompt_of(i))]))
    heard.buffer.sample(50, 1)
    assert (world.store.listings, heard.store.listings) == (1, 0)


def test_a_failed_group_goes_out_again_under_a_new_uid_and_nothing_of_it_stays() -> None:
    world = World()
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    world.store.finish([failed_of(prompt_of(1), survivors=1), finished_of(prompt_of(2))])
    second = prompt_of(1, attempt=1)
    world.store.after(5, lambda: world.store.finish([finished_of(second)]))
    groups = world.buffer.sample(2, 1)
    assert [group.prompt.uid for group in groups] == [second.uid, uid_of(2)]
    assert groups[0].errors == ("session 1: boom",)
    assert {row.uid for row in groups[0].trajectories} == {second.uid}
    assert [prompt.uid for prompt in world.dispatched[1]] == [second.uid]
    assert world.book.of("failed") == [
        ((uid_of(1),), {"base_uids": [uid_of(1)], "reason": "failed", "errors": ["session 1: boom"]})
    ]
    assert world.book.of("reissued") == [((second.uid,), {"base_uids": [uid_of(1)]})]
    assert sorted(world.store._rows) == sorted(group.prompt.uid for group in groups)
    assert world.store.tags() == {}
    world.check()


def test_a_group_that_never_succeeds_is_dropped_with_all_its_reasons() -> None:
    world = World(max_reissues=2)
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    for attempt in range(3):
        failing = failed_of(prompt_of(1, attempt), survivors=0, errors=(f"boom {attempt}",))
        world.store.after(attempt + 1, lambda failing=failing: world.store.finish([failing]))
    world.store.after(9, lambda: world.store.finish([finished_of(prompt_of(2))]))
    groups = world.buffer.sample(2, 4)
    assert [group.prompt.ordinal for group in groups] == [2]  # fewer than asked for, and it returns
    assert world.book.of("dropped") == [
        (
            (uid_of(1, 2),),
            {"base_uids": [uid_of(1)], "step": 4, "reason": "failed", "errors": ["boom 0", "boom 1", "boom 2"]},
        )
    ]
    account = world.buffer.accounting()
    assert (account.dropped, account.failed, account.reissued) == ({"failed": 1}, 3, 2)
    world.check()


def test_when_every_group_is_dropped_sample_returns_empty_handed() -> None:
    world = World(max_reissues=0)
    world.buffer.submit([prompt_of(1)])
    world.store.finish([failed_of(prompt_of(1))])
    assert world.buffer.sample(1, 1) == []
    with pytest.raises(StoreError, match="submit prompts first"):
        world.buffer.sample(1, 1)
    world.check()


def test_a_finished_group_without_trajectories_is_a_failure() -> None:
    world = World(max_reissues=0)
    world.buffer.submit([prompt_of(1)])
    world.store.finish([Finished(tag_of(prompt_of(1), GroupStatus.FINISHED), ())])
    assert world.buffer.sample(1, 1) == []
    assert world.buffer.accounting().dropped == {"empty": 1}


def test_a_damaged_row_costs_its_group_an_attempt_and_no_other_group_anything() -> None:
    world = World()
    world.buffer.submit([prompt_of(i) for i in range(3)])
    tags = world.store.finish([finished_of(prompt_of(i)) for i in range(3)])
    uid = tags[1].uid
    world.store._rows[uid] = world.store._rows[uid][:-4] + b"evil"
    world.store.after(1, lambda: world.store.finish([finished_of(prompt_of(1, attempt=1))]))
    groups = world.buffer.sample(3, 1)
    assert [(group.prompt.ordinal, group.prompt.attempt) for group in groups] == [(0, 0), (1, 1), (2, 0)]
    assert world.buffer.accounting().quarantined == 1
    assert world.book.of("failed")[0][1]["reason"] == "corrupt"
    assert uid in groups[1].errors[0]
    world.check()


def test_a_manifest_that_names_rows_of_another_group_is_quarantined() -> None:
    world = World(max_reissues=0)
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    one, two = world.store.finish([finished_of(prompt_of(1)), finished_of(prompt_of(2))])
    world.store.write_tags([replace(one, manifest=two.manifest)])
    groups = world.buffer.sample(2, 1)
    assert [group.prompt.ordinal for group in groups] == [2]
    assert world.buffer.accounting().dropped == {"corrupt": 1}


def test_a_running_group_past_its_lease_is_reissued_and_its_late_result_is_swept() -> None:
    world = World(lease_s=60.0, poll_s=1.0)
    old, new = prompt_of(1), prompt_of(1, attempt=1)
    world.buffer.submit([old])
    run(world, old)
    world.store.after(70, lambda: world.store.finish([finished_of(old)]))
    world.store.after(80, lambda: world.store.finish([finished_of(new)]))
    (group,) = world.buffer.sample(1, 1)
    assert (group.prompt.uid, group.prompt.attempt) == (new.uid, 1)
    assert "lease of 60 s" in group.errors[0]
    assert "agent-3" in group.errors[0]
    account = world.buffer.accounting()
    assert (account.expired, account.late, account.reissued) == (1, 1, 1)
    assert list(world.store._rows) == [new.uid]
    assert world.store.tags() == {}
    world.check()


def test_a_lease_begins_when_the_group_is_seen_running_not_when_it_was_submitted() -> None:
    world = World(lease_s=60.0)
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    world.store.after(50, lambda: run(world, prompt_of(1)))
    world.store.after(105, lambda: world.store.finish([finished_of(prompt_of(1))]))  # 55 s of running
    world.store.after(106, lambda: run(world, prompt_of(2)))  # waited in line for long, but the line moved
    world.store.after(160, lambda: world.store.finish([finished_of(prompt_of(2))]))
    groups = world.buffer.sample(2, 1)
    assert [group.prompt.attempt for group in groups] == [0, 0]
    assert world.buffer.accounting().expired == 0


def test_pending_groups_that_nobody_takes_up_are_reissued_after_a_lease_in_which_nothing_moved() -> None:
    world = World(lease_s=60.0)
    world.buffer.submit([prompt_of(1)])
    world.store.after(61.5, lambda: world.store.finish([finished_of(prompt_of(1, attempt=1))]))
    (group,) = world.buffer.sample(1, 1)
    assert group.prompt.attempt == 1
    assert 1060 <= world.store.now < 1063


def test_after_a_long_update_a_finished_group_is_not_mistaken_for_an_expired_one() -> None:
    world = World(lease_s=60.0)
    world.store.deaf = True
    world.buffer.submit([prompt_of(1)])
    run(world, prompt_of(1))
    world.buffer.collect()  # seen running
    world.store.finish([finished_of(prompt_of(1))])
    world.store.pass_time(10_000)
    (group,) = world.buffer.sample(1, 1)
    assert group.prompt.attempt == 0


def test_a_vanished_tag_is_noticed() -> None:
    world = World()
    world.buffer.submit([prompt_of(1)])
    world.store.clear_groups([uid_of(1)])
    world.store.after(5, lambda: world.store.finish([finished_of(prompt_of(1, attempt=1))]))
    (group,) = world.buffer.sample(1, 1)
    assert "gone from the store" in group.errors[0]
    assert world.book.of("failed")[0][1]["reason"] == "vanished"


def test_a_stall_names_the_stuck_groups_and_where_they_are() -> None:
    world = World(lease_s=10_000.0, stall_timeout_s=300.0)
    world.buffer.submit([prompt_of(i) for i in range(30)])
    run(world, prompt_of(7))
    world.store.after(100, lambda: world.store.finish([finished_of(prompt_of(8))]))
    with pytest.raises(DeadlineExceeded) as caught:
        world.buffer.sample(30, 1)
    assert 1400 <= world.store.now < 1402  # 300 s after the last group settled
    state = caught.value.state
    assert f"{uid_of(7)} (ordinal 7, attempt 0) running for 399 s, owner agent-3" in state
    assert "and 9 more open groups" in state
    assert "pending=28, running=1, arrived=1" in state
    world.check()


def test_the_stall_clock_does_not_run_between_samples() -> None:
    world = World(lease_s=10_000.0, stall_timeout_s=50.0)
    world.buffer.submit([prompt_of(1)])
    world.store.pass_time(10_000)
    world.store.after(40, lambda: world.store.finish([finished_of(prompt_of(1))]))
    assert len(world.buffer.sample(1, 1)) == 1


def test_a_second_life_takes_over_what_the_first_left_in_the_store() -> None:
    """The process died after a group settled, while another ran, and one failed; its workers know the uids already."""
    world = World()
    prompts = [prompt_of(i) for i in range(4)]
    world.buffer.submit(prompts)
    world.store.finish([finished_of(prompts[0]), failed_of(prompts[2])])
    run(world, prompts[1])
    world.dispatched.clear()
    world.store.clear_groups([uid_of(3)])  # this one never got as far as the store
    world.book.by_base.clear()
    buffer = world.buffer = world.new_buffer()
    buffer.submit(prompts)
    assert buffer.ready == 1
    assert [[p.uid for p in batch] for batch in world.dispatched] == [[uid_of(1), uid_of(3)], [uid_of(2, 1)]]
    assert world.store.tags()[uid_of(1)].status is GroupStatus.RUNNING  # not set back
    world.store.finish([finished_of(prompt) for prompt in (prompts[1], prompts[3], prompt_of(2, 1))])
    arrived: list[Group] = []
    groups = buffer.sample(4, 1, arrived.extend)
    assert [group.prompt.uid for group in groups] == [uid_of(0), uid_of(1), uid_of(2, 1), uid_of(3)]
    assert len(arrived) == 4
    world.check()


def test_uids_are_used_once() -> None:
    world = World()
    world.buffer.submit([prompt_of(1)])
    with pytest.raises(StoreError, match="submitted twice"):
        world.buffer.submit([prompt_of(1)])
    with pytest.raises(StoreError, match="submitted twice"):
        world.buffer.submit([prompt_of(2), prompt_of(2)])
    world.store.finish([finished_of(prompt_of(1))])
    groups = world.buffer.sample(1, 1)
    world.buffer.clear(groups)
    with pytest.raises(StoreError, match="submitted twice"):
        world.buffer.submit([prompt_of(1)])
    with pytest.raises(StoreError, match="not claimed"):
        world.buffer.clear(groups)
    with pytest.raises(StoreError, match="not claimed"):
        world.buffer.drop(groups, "late")
    world.buffer.submit([])
    assert len(world.dispatched) == 1
    world.check()


def test_groups_of_an_earlier_process_may_be_cleared_along() -> None:
    """The rollout stage hands back groups it read from its spool together with fresh ones."""
    world = World()
    (spooled_tag,) = world.store.finish([finished_of(prompt_of(7))])
    spooled = Group(prompt_of(7), world.store.fetch([spooled_tag.manifest]))
    world.buffer.submit([prompt_of(1)])
    world.store.finish([finished_of(prompt_of(1))])
    world.buffer.clear([*world.buffer.sample(1, 1), spooled])
    assert world.store._rows == {}
    assert world.buffer.accounting().trained == 1
    world.check()


def test_claimed_groups_can_be_dropped_with_a_reason() -> None:
    world = World()
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    world.store.finish([finished_of(prompt_of(1)), finished_of(prompt_of(2))])
    groups = world.buffer.sample(2, 3)
    world.buffer.drop(groups[:1], "no spread of rewards")
    world.buffer.clear(groups[1:])
    assert world.buffer.accounting().dropped == {"no spread of rewards": 1}
    assert world.book.of("dropped")[0][1]["step"] == 3
    assert world.store._rows == {}
    world.check()


def test_a_second_result_of_a_claimed_group_is_swept() -> None:
    world = World()
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    world.store.finish([finished_of(prompt_of(1))])
    (group,) = world.buffer.sample(1, 1)
    world.store.finish([finished_of(prompt_of(1))])  # the worker's answer was lost, it tries again
    run(world, prompt_of(1))
    world.store.finish([finished_of(prompt_of(2))])
    groups = world.buffer.sample(1, 1)
    world.buffer.collect()
    assert [g.prompt.ordinal for g in groups] == [2]
    assert world.store.tags() == {}
    world.buffer.clear([group, *groups])
    assert world.store._rows == {}
    world.check()


def test_rings_of_others_are_none_of_our_business() -> None:
    world = World()
    world.store.finish([finished_of(prompt_of(50))])
    world.buffer.submit([prompt_of(1)])
    world.store.finish([finished_of(prompt_of(1))])
    world.buffer.sample(1, 1)
    world.buffer.collect()
    assert set(world.store.tags()) == {uid_of(50)}
    assert set(world.store._rows) == {uid_of(50), uid_of(1)}


def test_a_reissue_that_breaks_its_contract_is_caught_before_anything_changes() -> None:
    world = World()
    world.buffer.submit([prompt_of(1)])
    world.store.finish([failed_of(prompt_of(1))])
    world.buffer._intake.reissue = lambda prompt: prompt
    with pytest.raises(StoreError, match="must be new"):
        world.buffer.sample(1, 1)
    assert world.buffer.accounting().in_flight == 1
    world.buffer._intake.reissue = reissue
    world.store.after(2, lambda: world.store.finish([finished_of(prompt_of(1, 1))]))
    assert len(world.buffer.sample(1, 1)) == 1
    world.check()


def test_a_store_that_dies_in_between_leaves_the_books_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.buffer.submit([prompt_of(1), prompt_of(2)])
    world.store.finish([failed_of(prompt_of(1)), finished_of(prompt_of(2))])

    def dead(*given: list[object]) -> None:
        if given and not given[0]:
            return  # nothing to do, no call made
        raise DeadlineExceeded("TransferQueue", 1.0, "dead")

    for call in ("read_tags", "fetch", "tags", "clear_rows"):
        with monkeypatch.context() as patch:
            patch.setattr(world.store, call, dead)
            with pytest.raises(DeadlineExceeded):
                world.buffer.sample(2, 1)
        world.check()
    account = world.buffer.accounting()
    # The failed attempt was already replaced when clearing its rows failed: its successor has no tag and was not sent.
    assert (account.pending, account.arrived, account.reissued) == (1, 1, 1)
    world.store.after(5, lambda: world.store.finish([finished_of(prompt_of(1, 2))]))
    groups = world.buffer.sample(2, 1)
    assert [(group.prompt.ordinal, group.prompt.attempt) for group in groups] == [(1, 2), (2, 0)]
    world.check()


def test_what_a_group_holds_is_what_its_workers_packed() -> None:
    world = World()
    prompt = prompt_of(1)
    rows = (trajectory_of(prompt, 0, versions=(3, 4)), trajectory_of(prompt, 0, index=1), trajectory_of(prompt, 1))
    world.buffer.submit([prompt])
    world.store.finish([Finished(tag_of(prompt, GroupStatus.FINISHED), rows[::-1])])
    (group,) = world.buffer.sample(1, 1)
    assert [pack([row]) for row in group.trajectories] == [pack([row]) for row in rows]


def test_a_wait_asks_at_least_once_a_second_whether_it_still_makes_sense() -> None:
    """However rarely the store is listed. What `check` raises ends the wait, and the books stay balanced."""
    world = World(poll_s=100.0)
    asked: list[float] = []

    def check() -> None:
        asked.append(world.store.now)
        if len(asked) > 5:
            raise StreamFailed("the rollout side failed: EngineDead: gone")

    clock = Clock(lambda: world.store.now, lambda: world.store.now)
    buffer = ReplayBuffer(world.store, world.config, lambda prompts: None, world.book, reissue, clock, check=check)
    buffer.submit([prompt_of(0)])
    with pytest.raises(StreamFailed, match="EngineDead: gone"):
        buffer.sample(1, 1)
    assert max(later - earlier for earlier, later in pairwise(asked)) <= 1.0
    account = buffer.accounting()
    assert account.balanced
    assert account.in_flight == 1

"""The law of the design, under any order of events: served = trained + dropped + in flight, each group at most once."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.transfer.build import failed_of, finished_of, prompt_of, tag_of
from tests.transfer.world import World
from verl_core.errors import DeadlineExceeded
from verl_core.trajectory import Prompt
from verl_core.transfer.flight import Group
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.interface import Finished


class Law(RuleBasedStateMachine):
    """Workers are reliable in nothing: they finish late, twice, with damage, or never."""

    @initialize(deaf=st.booleans(), max_reissues=st.integers(0, 2))
    def begin(self, deaf: bool, max_reissues: int) -> None:
        self.world = World(lease_s=60.0, stall_timeout_s=100.0, max_reissues=max_reissues)
        self.world.store.deaf = deaf
        self.served = 0
        self.claimed: list[Group] = []
        self.untold: set[str] = set()

    def some_attempt(self, data: st.DataObject) -> Prompt:
        """Any attempt that was ever sent out, given up or not."""
        sent = [prompt for batch in self.world.dispatched for prompt in batch]
        return data.draw(st.sampled_from(sent))

    @rule(count=st.integers(1, 3))
    def submit(self, count: int) -> None:
        self.world.buffer.submit([prompt_of(self.served + i) for i in range(count)])
        self.served += count

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def worker_takes_up(self, data: st.DataObject) -> None:
        prompt = self.some_attempt(data)
        self.world.store.write_tags([tag_of(prompt, GroupStatus.RUNNING)])
        self.untold.add(prompt.uid)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def worker_finishes(self, data: st.DataObject) -> None:
        self.world.store.finish([finished_of(self.some_attempt(data))])

    @precondition(lambda self: self.served)
    @rule(data=st.data(), survivors=st.integers(0, 1))
    def worker_fails(self, data: st.DataObject, survivors: int) -> None:
        self.world.store.finish([failed_of(self.some_attempt(data), survivors)])

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def worker_finishes_with_nothing(self, data: st.DataObject) -> None:
        self.world.store.finish([Finished(tag_of(self.some_attempt(data), GroupStatus.FINISHED), ())])

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def worker_finishes_and_a_row_is_damaged(self, data: st.DataObject) -> None:
        (tag,) = self.world.store.finish([finished_of(self.some_attempt(data))])
        if data.draw(st.booleans()):
            del self.world.store._rows[tag.uid]
        else:
            self.world.store._rows[tag.uid] = self.world.store._rows[tag.uid][::-1]

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def a_tag_gets_lost(self, data: st.DataObject) -> None:
        uid = self.some_attempt(data).uid
        self.world.store.clear_groups([uid])
        self.untold.add(uid)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.store.pass_time(seconds)

    @rule()
    def collect(self) -> None:
        self.world.buffer.collect()

    @precondition(lambda self: self.world.buffer.ready)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        groups = self.world.buffer.sample(data.draw(st.integers(1, self.world.buffer.ready)), 1)
        ordinals = [group.prompt.ordinal for group in groups]
        assert ordinals == sorted(ordinals)
        for group in groups:
            assert [row.uid for row in group.trajectories] == [group.prompt.uid] * 2
        self.claimed += groups

    @precondition(lambda self: self.world.buffer.accounting().pending)
    @rule()
    def wait_in_vain(self) -> None:
        wanted = self.world.buffer.ready + 1
        with contextlib.suppress(DeadlineExceeded):
            self.claimed += self.world.buffer.sample(wanted, 1)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), drop=st.booleans())
    def clear_or_drop(self, data: st.DataObject, drop: bool) -> None:
        count = data.draw(st.integers(1, len(self.claimed)))
        groups, self.claimed = self.claimed[:count], self.claimed[count:]
        if drop:
            self.world.buffer.drop(groups, "test")
        else:
            self.world.buffer.clear(groups)

    @invariant()
    def the_law_holds(self) -> None:
        self.world.check()
        assert self.world.buffer.accounting().served == self.served
        assert self.world.buffer.accounting().claimed == len(self.claimed)

    def teardown(self) -> None:
        """Let every open attempt finish well: all groups end, and no tag is left, whoever wrote what."""
        if not self.served:
            return
        world = self.world
        world.store.deaf = False
        while world.buffer.accounting().in_flight:
            open_now = list(world.buffer._books.open.values())
            world.store.finish([finished_of(flight.prompt) for flight in open_now])
            world.buffer.collect()
            if world.buffer.ready:
                self.claimed += world.buffer.sample(world.buffer.ready, 2)
            world.buffer.clear(self.claimed)
            self.claimed = []
            world.check()
        world.buffer.collect()
        account = world.buffer.accounting()
        assert account.served == account.trained + sum(account.dropped.values()) == self.served
        assert world.store.tags() == {}
        # Rows stay only where the tag that would have told of them was lost, or overwritten, before anybody read it.
        assert not set(world.store._rows) - self.untold


TestLaw = Law.TestCase
TestLaw.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

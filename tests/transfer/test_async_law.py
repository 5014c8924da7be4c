"""Exactly once, whatever happens in whatever order: served = trained + dropped (with a reason) + in flight, in all
modes and across every crash; the journal's accounts and the buffer's agree, and the bounds on staleness hold."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.transfer.build import failed_of, finished_of, tag_of
from tests.transfer.trainer_model import DEEDS, Crash, TrainerModel
from tests.transfer.world import TimedQueue, TimedStore
from verl_core.config.schema import BufferConfig
from verl_core.errors import DeadlineExceeded, RolloutError
from verl_core.trajectory import Prompt
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.interface import Finished
from verl_core.transfer.refills import Cap
from verl_core.transfer.staleness import Admission, Drop, StalenessPolicy, Unbounded, Wait
from verl_core.transfer.tq_store import TransferQueueStore

STRATEGIES = ("sync", "drop", "wait", "admission", "off")


def policy_of(strategy: str, size: int, bound: int) -> StalenessPolicy | None:
    policies: dict[str, StalenessPolicy | None] = {
        "sync": None,
        "wait": Wait(size, bound),
        "drop": Drop(size, bound),
        "admission": Admission(size, bound),
        "off": Unbounded(size),
    }
    return policies[strategy]


class Law(RuleBasedStateMachine):
    """Workers finish in any order, under any weights, fail, are cut off, or are never heard of again."""

    def store(self) -> Any:
        return TimedStore()

    @initialize(
        strategy=st.sampled_from([*STRATEGIES, "drop", "wait"]),
        size=st.integers(1, 3),
        bound=st.integers(0, 2),
        is_ahead=st.sampled_from([True, True, False]),
        max_reissues=st.integers(0, 2),
        deaf=st.booleans(),
        cap=st.sampled_from([None, None, Cap(), Cap(1, "train"), Cap(2, "train"), Cap(2)]),
        total=st.sampled_from([None, None, 3]),
    )
    def begin(
        self,
        strategy: str,
        size: int,
        bound: int,
        is_ahead: bool,
        max_reissues: int,
        deaf: bool,
        cap: Cap | None,
        total: int | None,
    ) -> None:
        config = BufferConfig(lease_s=60.0, stall_timeout_s=100.0, max_reissues=max_reissues)
        self.strategy, self.bound = strategy, bound
        too_far = strategy == "drop"  # no configuration may ask for it; here it makes groups stale
        ahead = bound + too_far if is_ahead and strategy != "sync" else 0
        self.model = TrainerModel(self.store(), policy_of(strategy, size, bound), config, size, ahead, cap, total)
        self.model.store.deaf = deaf
        self.model.top_up()

    def some_attempt(self, data: st.DataObject) -> Prompt:
        """Any attempt that a worker knows of, given up or not."""
        return data.draw(st.sampled_from(list(self.model.sent.values())))

    def result(self, prompt: Prompt, data: st.DataObject) -> Finished:
        """Sampled from the weights it began with on, or later ones, in one piece or cut at each publication."""
        first = data.draw(st.integers(self.model.begun[prompt.uid], self.model.version))
        is_cut = data.draw(st.booleans())
        return finished_of(prompt, versions=tuple(range(first, self.model.version + 1)) if is_cut else (first,))

    def lives_on(self, call: Any, empties: bool) -> None:
        """Whatever stops the process, the next one takes over."""
        try:
            call()
        except (Crash, RolloutError):
            self.model.crash(empties)

    # ---- workers

    @precondition(lambda self: self.model.sent)
    @rule(data=st.data())
    def worker_takes_up(self, data: st.DataObject) -> None:
        self.model.store.write_tags([tag_of(self.some_attempt(data), GroupStatus.RUNNING)])

    @precondition(lambda self: self.model.sent)
    @rule(data=st.data(), count=st.integers(1, 3))
    def workers_finish(self, data: st.DataObject, count: int) -> None:
        prompts = {prompt.uid: prompt for prompt in (self.some_attempt(data) for _ in range(count))}
        self.model.store.finish([self.result(prompt, data) for prompt in prompts.values()])

    @precondition(lambda self: self.model.buffer._books.open)
    @rule(data=st.data())
    def awaited_groups_finish(self, data: st.DataObject) -> None:
        open_now = list(self.model.buffer._books.open)
        left = data.draw(st.sets(st.sampled_from(open_now), max_size=2))  # the stragglers
        self.model.store.finish([self.result(self.model.sent[uid], data) for uid in open_now if uid not in left])

    @precondition(lambda self: self.model.sent)
    @rule(data=st.data())
    def worker_fails(self, data: st.DataObject) -> None:
        self.model.store.finish([failed_of(self.some_attempt(data), data.draw(st.integers(0, 1)))])

    @rule(seconds=st.sampled_from([1.0, 1.0, 61.0]), is_asleep=st.booleans())
    def time_passes(self, seconds: float, is_asleep: bool) -> None:
        if is_asleep:
            self.model.buffer.pause()
        self.model.store.pass_time(seconds)
        if is_asleep:
            self.model.buffer.resume()
        self.model.buffer.sampleable(self.model.step)

    # ---- the trainer

    @precondition(lambda self: not self.model.untrained)
    @rule(dies_before=st.sampled_from([*[""] * 9, *DEEDS]), empties=st.booleans(), data=st.data())
    def roll_out(self, dies_before: str, empties: bool, data: st.DataObject) -> None:
        if self.model.is_over:
            return
        self.lives_on(self.model.top_up, empties)
        if not self.model.buffer.unclaimed():
            return
        if self.model.buffer._books.open and data.draw(st.sampled_from([True, True, True, False])):
            self.awaited_groups_finish(data)
        with contextlib.suppress(DeadlineExceeded):  # nothing came: the trainer may try again
            self.lives_on(lambda: self.model.rollout(dies_before), empties)

    @precondition(lambda self: self.model.untrained)
    @rule(dies_before=st.sampled_from([*[""] * 9, *DEEDS]), empties=st.booleans())
    def update_and_publish(self, dies_before: str, empties: bool) -> None:
        self.lives_on(lambda: self.model.update(dies_before), empties)

    @precondition(lambda self: not self.model.untrained)
    @rule(steps=st.integers(1, 3), data=st.data())
    def steps_go_well(self, steps: int, data: st.DataObject) -> None:
        for _ in range(steps):
            self.roll_out("", False, data)
            if self.model.untrained:
                self.model.update()
            self.model.check()

    @rule(empties=st.booleans())
    def crash(self, empties: bool) -> None:
        self.model.crash(empties)

    # ---- the law

    @invariant()
    def the_law_holds(self) -> None:
        self.model.check()

    @invariant()
    def the_bound_holds(self) -> None:
        if self.strategy in ("wait", "drop"):
            assert max(self.model.staleness, default=0) <= self.bound

    def teardown(self) -> None:
        """Two more steps in which everything finishes; then the run is over and every prompt has one outcome."""
        model = self.model
        model.store.deaf = False
        if model.cap is not None:
            model.cap = Cap(0)  # so that a batch comes together
            model.crash(empties=False)
        for _ in range(2):
            while model.untrained:
                model.update()
            if model.is_over:
                break
            model.top_up()
            if model.buffer.unclaimed():
                self.finish_all()
                model.rollout()
                model.check()
        while model.untrained:
            model.update()
        abandoned = {prompt.base_uid for prompt in model.buffer.unclaimed()}
        assert model.buffer.abandon("the run is over") == len(abandoned)
        model.ledger.append("ended", (), step=model.step - 1)
        accounts = model.accounts()
        assert accounts.exact
        assert accounts.in_flight == 0
        assert accounts.served == model.next
        assert model.store.tags().keys() <= model.sent.keys()

    def finish_all(self) -> None:
        """Again and again, as refills are served while the buffer waits."""
        model, dispatch = self.model, self.model.dispatch

        def at_once(prompts: Any) -> None:
            dispatch(prompts)
            model.store.finish([finished_of(prompt, versions=(model.version,)) for prompt in prompts])

        model.buffer._intake._dispatch = at_once
        open_now = [flight.prompt for flight in model.buffer._books.open.values()]
        model.store.finish([finished_of(prompt, versions=(model.begun[prompt.uid],)) for prompt in open_now])


TestLaw = Law.TestCase
TestLaw.settings = settings(max_examples=80, stateful_step_count=50, deadline=None, phases=[Phase.generate])


def test_the_law_on_the_real_queue(tq_store: TransferQueueStore) -> None:
    """A smoke set. No replay and no shrinking: the real store's timing is its own."""

    class LawOnTheQueue(Law):
        def store(self) -> Any:
            tq_store.reset()
            return TimedQueue(tq_store)

    run_state_machine_as_test(
        LawOnTheQueue,
        settings=settings(
            max_examples=2,
            stateful_step_count=12,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("cap", [None, Cap()], ids=["plain", "filtered"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_crash_point_of_a_step_with_and_without_the_store(strategy: str, cap: Cap | None) -> None:
    """Three steps, dying once before each deed: the weights get every prompt once, in the steps of a calm run."""
    for dies_before in DEEDS:
        for empties in (False, True):
            ahead = int(strategy != "sync")
            model = TrainerModel(TimedStore(), policy_of(strategy, 2, 1), BufferConfig(), 2, ahead, cap)
            law, died = Law(), False
            law.model = model
            for _ in range(3):
                for work in ("rollout", "update"):
                    is_done = False
                    while not is_done:
                        try:
                            if work == "rollout":
                                model.top_up()
                                law.finish_all()
                            getattr(model, work)("" if died else dies_before)
                            is_done = True
                        except Crash:
                            died = True
                            model.crash(empties)
                            is_done = work == "rollout" and bool(model.untrained)
                            is_done = is_done or (work == "update" and not model.untrained)
                        model.check()
            assert died == (dies_before != "claim")
            assert [len(bases) for bases in model.disk.record.values()] == [2, 2, 2]
            trained = sorted(group.prompt.ordinal for groups in model.disk.trajectories.values() for group in groups)
            if cap is None:
                assert trained == list(range(6))
            else:  # 0, 3 and 6 are constant
                assert trained == [1, 2, 4, 5, 7, 8]
                assert set(model.accounts().dropped) == {"constant"}


def run_to_the_end(strategy: str, cap: Cap, constant: set[int], dies: bool) -> TrainerModel:
    """Three steps of two groups, one batch ahead where the strategy allows it. With `dies` each step is done by a
    process of its own, and the store is empty when it begins."""
    model = TrainerModel(
        TimedStore(), policy_of(strategy, 2, 1), BufferConfig(), 2, int(strategy != "sync"), cap, total=3
    )
    model.is_constant = lambda ordinal: ordinal in constant
    law = Law()
    law.model = model
    for _ in range(3):
        if dies:
            model.crash(empties=True)
        model.top_up()
        law.finish_all()
        model.rollout()
        model.update()
        model.check()
    return model


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if strategy != "sync"])
@pytest.mark.parametrize(
    ("cap", "constant", "trained"),
    [
        (Cap(1, "train"), {0, 1}, [[2, 3], [4, 5], [6, 7]]),  # 6 and 7 are generated for step 3, which was served none
        (Cap(1), {0, 1}, [[2, 3], [4, 5], [6, 7]]),
        (Cap(1, "train"), {0, 1, 4}, [[2, 3], [5], [6, 7]]),  # step 2 is smaller for one; two are owed to step 3
        # 4 and 5 replace 0 and 1; in step 2 these and 6 are dropped, 8 and 9 are all it may generate: one is owed
        (Cap(2), {0, 1, 4, 5, 6}, [[2, 3], [7, 8], [9, 10]]),
    ],
)
def test_at_the_end_of_a_run_a_cap_has_not_eaten_what_was_served_ahead(
    cap: Cap, constant: set[int], trained: list[list[int]], strategy: str, dies: bool
) -> None:
    model = run_to_the_end(strategy, cap, constant, dies)
    kept = model.disk.trajectories.values()
    assert [sorted(group.prompt.ordinal for group in groups) for groups in kept] == trained
    assert model.buffer.unclaimed() == []


@pytest.mark.parametrize("cap", [Cap(), Cap(1), Cap(2), Cap(1, "train"), Cap(2, "train")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whatever_is_constant_each_step_is_full_or_its_cap_says_why(strategy: str, cap: Cap) -> None:
    for bits in range(32):  # which of the first five prompts
        constant = {ordinal for ordinal in range(5) if bits >> ordinal & 1}
        model, refusal = None, ""
        try:
            model = run_to_the_end(strategy, cap, constant, dies=False)
        except RolloutError as error:
            refusal = str(error)
        if model is None:
            assert cap.max_gen_batches, refusal
            assert f"max_num_gen_batches={cap.max_gen_batches} allows" in refusal
            assert cap.when_capped == "error" or "and 0 of 2 are not constant. Raise it, or give" in refusal
        else:
            sizes = [len(groups) for groups in model.disk.trajectories.values()]
            assert sizes == [2, 2, 2] or cap.when_capped == "train"
            assert not cap.max_gen_batches or model.next <= 3 * 2 * cap.max_gen_batches + 2 * model.ahead

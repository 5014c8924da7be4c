"""Groups settle whatever their sessions do; commits are coalesced, ordered and never lost. One process, no Ray."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from tests.rollout.agent_cases import FakeClient, OddAgent, config_of, prompt_of
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.rollout import committer, group_run
from verl_core.rollout.agent_core import AgentCore, WorkerHealth
from verl_core.rollout.committer import StoreCommitter
from verl_core.rollout.group_run import GroupRunner
from verl_core.rollout.interface import LLMClient, SamplingParams
from verl_core.rollout.outbox import Outbox
from verl_core.rollout.trouble import Trouble
from verl_core.trajectory import Prompt, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.interface import Finished
from verl_core.transfer.memory import MemoryStore


class SpyStore(MemoryStore):
    """MemoryStore that keeps a diary, takes its time, and may be told to fail."""

    def __init__(self, takes_s: float = 0.0, fail: Callable[[str, int], None] = lambda what, call: None) -> None:
        super().__init__()
        self.diary: list[tuple[str, list[str], float]] = []
        self.threads: set[str] = set()
        self.closed = False
        self._takes_s, self._fail = takes_s, fail

    def _note(self, what: str, uids: list[str]) -> None:
        self.threads.add(threading.current_thread().name)
        self.diary.append((what, uids, time.monotonic()))
        time.sleep(self._takes_s)
        self._fail(what, len(self.diary))

    def write_tags(self, tags: Sequence[GroupTag]) -> None:
        self._note("running", [tag.uid for tag in tags])
        super().write_tags(tags)

    def finish(self, groups: Sequence[Finished]) -> list[GroupTag]:
        self._note("finish", [group.tag.uid for group in groups])
        return super().finish(groups)

    def close(self) -> None:
        self.closed = True


def work(prompts: Sequence[Prompt], store: MemoryStore, timeout_s: float = 5.0, seconds: float = 20.0) -> WorkerHealth:
    """Run the groups with OddAgent until all are delivered, at most `seconds`."""

    async def main() -> WorkerHealth:
        trouble = Trouble()
        runner = GroupRunner(
            config := config_of(request_timeout_s=timeout_s), OddAgent(config), FakeClient(), "agent-7"
        )
        core = AgentCore(runner, StoreCommitter(store, trouble), trouble)
        core.start(prompts, "d1")
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            await asyncio.sleep(0.005)
            tags = store.tags()
            if len(tags) == len(prompts) and all(tag.status.terminal for tag in tags.values()):
                break
        health = core.health("no servers")
        await core.close()
        return health

    return asyncio.run(main())


def test_a_group_of_sound_sessions() -> None:
    prompt, store = prompt_of(3, n=4), MemoryStore()
    health = work([prompt], store)
    tag = store.tags()[prompt.uid]
    assert (tag.status, tag.owner, tag.base_uid, tag.ordinal) == (GroupStatus.FINISHED, "agent-7", prompt.uid, 3)
    assert tag.manifest.keys == tuple(f"{prompt.uid}_{session}_0" for session in range(4))
    assert (tag.manifest.tokens, tag.manifest.min_version, tag.manifest.errors) == (1 + 2 + 3 + 4, 3, ())
    assert [len(row.response_ids) for row in store.fetch([tag.manifest])] == [1, 2, 3, 4]
    assert (health.started, health.finished, health.failed, health.troubles) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("raise", r"session 2: ValueError: user code is broken \(agent_cases.py:\d+ in run\)"),
        ("cancel", "session 2: cancelled"),
        ("hang", "session 2: still running after rollout.request_timeout_s=0.3, cut off$"),
        ("nothing", "session 2: RolloutError: an agent loop must return a non-empty list"),
        ("foreign", "session 2: RolloutError: output 0 is labelled"),
        ("nan", "session 2: RolloutError: output 0: a log-prob of a sampled token is not finite"),
    ],
)
def test_a_bad_session_fails_itself_only(order: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_run, "TIMEOUT_GRACE_S", 0.2)
    bad, good, store = prompt_of(1, n=4, **{"2": order}), prompt_of(2, n=4), MemoryStore()
    health = work([bad, good], store, timeout_s=0.3)
    tags = store.tags()
    assert (tags[bad.uid].status, tags[good.uid].status) == (GroupStatus.FAILURE, GroupStatus.FINISHED)
    assert len(tags[bad.uid].manifest.errors) == 1
    assert re.match(message, tags[bad.uid].manifest.errors[0]), tags[bad.uid].manifest.errors
    # what the others gave is kept, in order
    assert tags[bad.uid].manifest.keys == tuple(f"{bad.uid}_{session}_0" for session in (0, 1, 3))
    assert (health.finished, health.failed) == (1, 1)


def test_a_session_that_is_paused_with_its_server_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """request_timeout_s=0.2 would be over; in an asynchronous mode the pause is allowed beside it."""
    monkeypatch.setattr(group_run, "RESUMED_GRACE_S", 0.1)
    monkeypatch.setattr(group_run, "TIMEOUT_GRACE_S", 0.0)
    config = config_of(request_timeout_s=0.1, pause_timeout_s=1.0)

    async def outcome(mode: str, order: str) -> Finished:
        config.trainer.v1.trainer_mode = mode
        runner = GroupRunner(config, OddAgent(config), FakeClient(), "agent-7")
        return await runner.run(prompt_of(1, n=2, **{"0": order}))

    assert asyncio.run(outcome("colocate_async", "slow")).tag.status is GroupStatus.FINISHED  # it takes 0.3 s
    assert asyncio.run(outcome("sync", "slow")).tag.status is GroupStatus.FAILURE
    began = time.monotonic()
    hung = asyncio.run(outcome("separate_async", "hang"))
    assert 1.1 <= time.monotonic() - began < 5
    limits = "rollout.request_timeout_s=0.1 + rollout.pause_timeout_s=1"
    assert hung.tag.manifest.errors == (f"session 0: still running after {limits}, cut off",)


def test_a_session_that_ignores_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_run, "TIMEOUT_GRACE_S", 0.1)
    monkeypatch.setattr(group_run, "CANCEL_GRACE_S", 0.2)

    async def main() -> Finished:
        config = config_of(request_timeout_s=0.2)
        runner = GroupRunner(config, OddAgent(config), FakeClient(), "agent-7")
        found = await asyncio.wait_for(runner.run(prompt_of(1, n=2, **{"0": "deaf"})), 5)
        stuck = [task for task in asyncio.all_tasks() if task.get_name().endswith("_0")]
        assert len(stuck) == 1  # still there, and of no consequence
        stuck[0]._log_destroy_pending = False  # type: ignore[attr-defined]
        return found

    # the loop would wait for the deaf task at its end, as asyncio.run cancels and awaits what is left
    loop = asyncio.new_event_loop()
    found = loop.run_until_complete(main())
    loop.close()
    assert found.tag.status is GroupStatus.FAILURE
    assert "ignores being cancelled" in found.tag.manifest.errors[0]
    assert [row.session for row in found.trajectories] == [1]


def test_nothing_is_published_before_the_last_sibling_settled() -> None:
    prompt, store = prompt_of(1, n=8, **{"5": "slow", "0": "raise"}), SpyStore()
    start = time.monotonic()
    work([prompt], store)
    finishes = [when for what, _, when in store.diary if what == "finish"]
    assert len(finishes) == 1
    assert finishes[0] - start >= 0.3  # the slow one sleeps 0.3 s; its siblings were done at once
    assert len(store.tags()[prompt.uid].manifest.keys) == 7


def test_commits_are_coalesced_ordered_and_off_the_loop() -> None:
    prompts, store = [prompt_of(number, n=2) for number in range(64)], SpyStore(takes_s=0.1)
    work(prompts, store)
    assert len(store.diary) < 12  # 64 groups, one by one, would take 128 calls
    assert store.threads == {"store-committer_0"}  # not the loop's, and always the same
    for prompt in prompts:
        kinds = [what for what, uids, _ in store.diary if prompt.uid in uids]
        assert kinds in (["finish"], ["running", "finish"])
    assert store.closed


def test_running_is_told_while_the_group_runs() -> None:
    prompt, store = prompt_of(1, n=2, **{"1": "slow"}), SpyStore()
    work([prompt], store)
    assert [what for what, _, _ in store.diary] == ["running", "finish"]
    assert store.diary[1][2] - store.diary[0][2] > 0.2


def test_a_row_that_cannot_be_stored_fails_its_group_only() -> None:
    bad, good, store = prompt_of(1, n=2, **{"1": "unstorable"}), [prompt_of(n, n=2) for n in (2, 3)], MemoryStore()
    health = work([bad, *good], store)
    tags = store.tags()
    assert [tags[prompt.uid].status.value for prompt in (bad, *good)] == ["failure", "finished", "finished"]
    assert tags[bad.uid].manifest.keys == ()
    assert "did not take" in tags[bad.uid].manifest.errors[-1]
    assert health.troubles >= 1


def test_a_store_that_hiccups_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "_REST_S", 0.01)

    def fail(what: str, call: int) -> None:
        if what == "finish" and call <= 2:
            raise DeadlineExceeded("a store call", 1.0, "slow")

    prompt, store = prompt_of(1, n=2), SpyStore(fail=fail)
    health = work([prompt], store)
    assert store.tags()[prompt.uid].status is GroupStatus.FINISHED
    assert any("slow" in trouble for trouble in health.newest_troubles)


def test_a_dead_store_is_reported_and_the_worker_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "_REST_S", 0.01)

    def fail(what: str, call: int) -> None:
        raise StoreError("the controller is gone")

    prompt, store = prompt_of(1, n=2), SpyStore(fail=fail)
    health = work([prompt], store, seconds=1.0)
    assert health.running == 0
    assert any(f"group {prompt.uid} could not be published" in trouble for trouble in health.newest_troubles)
    assert any("the controller is gone" in trouble for trouble in health.newest_troubles)


def test_a_prompt_that_breaks_the_runner_itself_still_settles() -> None:
    prompt, store = prompt_of(1, n=0), MemoryStore()  # no session at all: asyncio refuses to wait for nothing
    health = work([prompt], store)
    tag = store.tags()[prompt.uid]
    assert tag.status is GroupStatus.FAILURE
    assert len(tag.manifest.errors) == 1
    assert any(prompt.uid in trouble for trouble in health.newest_troubles)


def core_with(outbox: Outbox) -> AgentCore:
    config = config_of()
    return AgentCore(GroupRunner(config, OddAgent(config), FakeClient(), "a"), outbox)


def test_a_repeated_dispatch_changes_nothing() -> None:
    async def main() -> list[Finished]:
        core = core_with(outbox := Outbox())
        for _ in range(3):
            core.start([prompt_of(1, n=2)], "d1")
        await asyncio.sleep(0.1)
        core.start([prompt_of(1, n=2)], "d1")
        await asyncio.sleep(0.1)
        return await outbox.take(0.1)

    assert [group.tag.uid for group in asyncio.run(main())] == [prompt_of(1).uid]


def test_a_new_dispatch_of_a_uid_that_runs_starts_it_anew() -> None:
    """A driver crashed and comes back with the same uid: only the new run hands in, and it hands in once."""

    async def main() -> tuple[list[Finished], WorkerHealth]:
        core = core_with(outbox := Outbox())
        core.start([prompt_of(1, n=2, **{"0": "hang"})], "before the crash")
        await asyncio.sleep(0.05)
        core.start([prompt_of(1, n=3)], "after it")
        await asyncio.sleep(0.2)
        return await outbox.take(0.1), core.health()

    groups, health = asyncio.run(main())
    assert [len(group.trajectories) for group in groups] == [3]
    assert (health.running, health.finished, health.failed) == (0, 1, 0)


def test_after_a_reset_nothing_old_is_handed_over() -> None:
    async def main() -> None:
        core = core_with(outbox := Outbox())
        core.start([prompt_of(1, n=2), prompt_of(2, n=2, **{"0": "slow"})], "d1")
        await asyncio.sleep(0.05)
        assert outbox.waiting == 1  # settled, not fetched; the other one runs
        await core.reset()
        assert (core.health().running, outbox.waiting) == (0, 0)
        await asyncio.sleep(0.4)
        assert await outbox.take(0.01) == []
        core.start([prompt_of(1, n=2)], "d2")
        assert [group.tag.uid for group in await outbox.take(2.0)] == [prompt_of(1).uid]

    asyncio.run(main())


def test_a_reset_waits_for_the_commit_under_way() -> None:
    async def main() -> tuple[int, int]:
        store, trouble, config = SpyStore(takes_s=0.2), Trouble(), config_of()
        runner = GroupRunner(config, OddAgent(config), FakeClient(), "a")
        core = AgentCore(runner, StoreCommitter(store, trouble), trouble)
        core.start([prompt_of(number, n=1) for number in range(5)], "d1")
        await asyncio.sleep(0.1)
        await core.reset()
        at_reset = len(store.diary)
        await asyncio.sleep(0.5)
        return at_reset, len(store.diary)

    at_reset, later = asyncio.run(main())
    assert at_reset == later >= 1


def test_closing_hands_over_what_runs_as_failed() -> None:
    async def main() -> list[Finished]:
        core = core_with(outbox := Outbox())
        core.start([prompt_of(1, n=2, **{"0": "hang"}), prompt_of(2, n=2)], "d1")
        await asyncio.sleep(0.1)
        assert len(core.health().oldest) == 1
        await core.close()
        return await outbox.take(0.1)

    done, cut = asyncio.run(asyncio.wait_for(main(), 5))
    assert done.tag.status is GroupStatus.FINISHED
    assert cut.tag.status is GroupStatus.FAILURE
    assert "shut down" in cut.tag.manifest.errors[0]


def test_the_outbox_waits_and_gives_each_group_once() -> None:
    async def main() -> None:
        outbox = Outbox()
        start = time.monotonic()
        assert await outbox.take(0.1) == []
        assert time.monotonic() - start >= 0.09
        group = Finished(GroupTag("u", "u", 0, 0, 0, GroupStatus.FINISHED), ())
        asyncio.get_running_loop().call_later(0.05, outbox.settled, group)
        assert await outbox.take(5.0) == [group]
        assert outbox.waiting == 0
        assert await outbox.take(0.01) == []

    asyncio.run(main())


def test_the_greedy_session_is_greedy_whatever_its_agent_loop_asks_for() -> None:
    class Own:
        """A user's agent loop, which knows nothing of baselines."""

        async def run(self, prompt: Prompt, session: int, client: LLMClient) -> list[Trajectory]:
            await client.generate(f"{prompt.uid}_{session}", [5], SamplingParams(4, 0.7, 0.9, 7, seed=session))
            return []

    config, client = config_of(n=2), FakeClient()
    config.algorithm.adv_estimator = "remax"
    runner = GroupRunner(config, Own(), client, "a")
    asyncio.run(runner.run(prompt_of(1, n=3)))
    asked = {request: params for request, _, params in client.calls}
    sampled = [SamplingParams(4, 0.7, 0.9, 7, seed=session) for session in range(3)]
    assert list(asked.values()) == [*sampled[:2], SamplingParams(4, temperature=0.0, seed=2)]
    client.calls.clear()
    asyncio.run(runner.run(prompt_of(1, n=3, validation=True)))
    assert [params for _, _, params in client.calls] == sampled

"""ServerPool: properties under any history, and the waits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded
from verl_core.rollout.pool import STICKY_SLACK, ServerPool

NAMES = ("s0", "s1", "s2", "s3")


def deadline(pool: ServerPool, seconds: float = 5.0) -> Deadline:
    return Deadline("a server", seconds, pool.state)


async def take(pool: ServerPool, request_id: str, seconds: float = 5.0):
    return await pool.acquire(request_id, deadline(pool, seconds))


def test_many_groups_spread_evenly() -> None:
    async def main() -> Counter[str]:
        pool = ServerPool({name: name for name in NAMES}, seed=1)
        return Counter([(await take(pool, f"{number}_0")).name for number in range(40)])

    assert asyncio.run(main()) == dict.fromkeys(NAMES, 10)


def test_ties_are_broken_at_random_and_repeatably() -> None:
    async def first(seed: int) -> str:
        return (await take(ServerPool({name: name for name in NAMES}, seed), "u_0")).name

    firsts = [asyncio.run(first(seed)) for seed in range(40)]
    assert set(firsts) == set(NAMES)  # not all requests of all workers hit the first server
    assert firsts == [asyncio.run(first(seed)) for seed in range(40)]


def test_sessions_of_a_group_stay_together_up_to_the_slack() -> None:
    async def main() -> list[str]:
        pool = ServerPool({"s0": 0, "s1": 1}, seed=1)
        return [(await take(pool, f"u_{session}")).name for session in range(20)]

    names = asyncio.run(main())
    # the first server keeps the group until it leads by more than the slack (the other one has 0)
    assert len(set(names[: STICKY_SLACK + 1])) == 1
    assert names[STICKY_SLACK + 1] != names[0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.integers(0, 5)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("dead"), st.integers(0, 30)),
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 3))
def test_any_history_keeps_the_books(steps: list[tuple[str, object]], seed: int) -> None:
    """Model: a dict of members, each with the seats taken since it joined; dead ones get nothing while they rest."""

    async def main() -> None:
        pool = ServerPool({"s0": object()}, seed)
        members: dict[str, set[object]] = {"s0": set()}
        resting: set[str] = set()
        held = []
        for action, argument in steps:
            awake = {name for name in members if name not in resting}
            if action == "acquire" and awake:
                before = {name: len(members[name]) for name in awake}
                seat = await take(pool, f"u{argument}_0")
                assert seat.name in awake
                assert before[seat.name] <= min(before.values()) + STICKY_SLACK
                members[seat.name].add(seat)
                held.append(seat)
            elif action == "acquire":
                with pytest.raises(DeadlineExceeded):
                    await take(pool, "u_0", 1e-4)
            elif action in ("release", "dead") and held:
                seat = held.pop(int(argument) % len(held))  # type: ignore[call-overload]
                current = seat in members.get(seat.name, ())
                if action == "dead":
                    pool.mark_dead(seat, "killed by the test")
                    resting |= {seat.name} if current else set()
                pool.release(seat)
                if current:
                    members[seat.name].discard(seat)
            elif action == "add" and argument not in members:
                pool.add(str(argument), object())
                members[str(argument)] = set()
            elif action == "remove":
                pool.remove(str(argument))
                members.pop(str(argument), None)
                resting.discard(str(argument))
            assert pool.loads == {name: len(seats) for name, seats in members.items()}

    frozen = SimpleNamespace(monotonic=lambda: 0.0)  # no rest ends by itself while the machine is slow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verl_core.rollout.pool.time", frozen)
        asyncio.run(main())


def test_releasing_twice_is_an_error() -> None:
    async def main() -> None:
        pool = ServerPool({"s0": 0})
        seat = await take(pool, "u_0")
        pool.release(seat)
        with pytest.raises(ValueError, match="released before"):
            pool.release(seat)
        assert pool.loads == {"s0": 0}

    asyncio.run(main())


def test_a_dead_server_rests_longer_each_time_and_a_success_forgives() -> None:
    async def rest(pool: ServerPool) -> float:
        start = time.monotonic()
        seat = await take(pool, "u_0")
        waited = time.monotonic() - start
        pool.mark_dead(seat, "gone")
        pool.release(seat)
        return waited

    async def main() -> list[float]:
        pool = ServerPool({"s0": 0})
        waits = [await rest(pool) for _ in range(3)]
        seat = await take(pool, "u_0")
        pool.release(seat, served=True)
        return [*waits, await rest(pool), await rest(pool)]

    first, second, third, forgiven, again = asyncio.run(main())
    assert (first, forgiven) < (0.1, 0.1)
    assert 0.2 < second < third  # 0.25, 0.5
    assert third > 0.45
    assert again > 0.2


def test_many_failures_at_once_count_once() -> None:
    async def main() -> float:
        pool = ServerPool({"s0": 0})
        seats = [await take(pool, f"{i}_0") for i in range(20)]
        for seat in seats:
            pool.mark_dead(seat, "gone")
            pool.release(seat)
        start = time.monotonic()
        await take(pool, "u_0")
        return time.monotonic() - start

    assert asyncio.run(main()) < 1.0  # one rest of 0.25 s, not 2^20 of them


def test_an_empty_pool_waits_for_a_server() -> None:
    async def main() -> str:
        pool: ServerPool[int] = ServerPool({})
        waiting = asyncio.create_task(take(pool, "u_0"))
        await asyncio.sleep(0.05)
        pool.add("late", 1)
        return (await asyncio.wait_for(waiting, 1)).name

    assert asyncio.run(main()) == "late"


def test_an_empty_pool_gives_up_with_its_state() -> None:
    async def main() -> None:
        pool = ServerPool({"s0": 0})
        seat = await take(pool, "u_0")
        pool.mark_dead(seat, "EngineDead: out of memory")
        await take(pool, "u_1", 0.1)

    with pytest.raises(DeadlineExceeded, match=r"a server.*s0: 1 in flight, rests .*out of memory"):
        asyncio.run(main())


def test_a_replaced_server_starts_clean_and_the_old_seat_harms_nobody() -> None:
    async def main() -> None:
        pool = ServerPool({"s0": "old"})
        seat = await take(pool, "u_0")
        pool.replace({"s0": "new", "s1": "other"})
        assert pool.loads == {"s0": 0, "s1": 0}
        pool.mark_dead(seat, "late news of the old one")
        pool.release(seat)
        assert {(await take(pool, f"{i}_0")).handle for i in range(4)} == {"new", "other"}
        assert pool.loads == {"s0": 2, "s1": 2}

    asyncio.run(main())


def test_replacing_with_the_same_handles_keeps_the_counts() -> None:
    async def main() -> None:
        pool = ServerPool({"s0": "same"})
        await take(pool, "u_0")
        pool.replace({"s0": "same", "s1": "new"})
        assert pool.loads == {"s0": 1, "s1": 0}

    asyncio.run(main())

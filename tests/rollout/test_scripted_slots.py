"""Places go to whoever waits longest, and come back whatever happens."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from verl_core.rollout.scripted_slots import Slots


def test_the_longest_wait_first_and_equals_in_the_order_of_asking() -> None:
    async def told() -> list[str]:
        slots, order = Slots(1), []
        held = slots.ask(5.0)
        waiting = {"late": slots.ask(3.0), "early": slots.ask(1.0), "twin": slots.ask(1.0), "gone": slots.ask(0.0)}
        slots.give_back(waiting.pop("gone"))
        while waiting:
            slots.give_back(held)
            (name,) = [name for name, place in waiting.items() if place.done()]
            order.append(name)
            held = waiting.pop(name)
        return order

    assert asyncio.run(told()) == ["early", "twin", "late"]


@given(
    count=st.integers(1, 3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40),
)
def test_never_more_holders_than_places_and_none_is_lost(count: int, steps: list[tuple[bool, int]]) -> None:
    """Against a list that is searched anew each time."""

    async def walk() -> None:
        slots, asked = Slots(count), []  # (since, serial, place), those that were not given back
        for serial, (ask, number) in enumerate(steps):
            if ask:
                asked.append((number, serial, slots.ask(float(number))))
            elif asked:
                slots.give_back(asked.pop(number % len(asked))[2])
            holding = [one for one in asked if one[2].done()]
            assert len(holding) == min(count, len(asked))

    asyncio.run(walk())

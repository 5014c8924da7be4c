"""However long the trainer keeps the servers from working, no lease of a group that runs is spent on it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.transfer.build import prompt_of, tag_of
from tests.transfer.world import World
from verl_core.config.schema import RunConfig
from verl_core.trainer.registry import get_trainer_cls
from verl_core.transfer.group import GroupStatus

LEASE_S = 60.0


class Session:
    """Of a trainer whose hooks take the seconds that they are told to; nothing else in it is asked for."""

    lent = None

    def __init__(self, world: World, publishing_s: float) -> None:
        self.buffer, self._world, self._publishing_s = world.buffer, world, publishing_s
        self.servers = SimpleNamespace(sleep=lambda abort: None)
        self.published: list[int] = []

    def publish(self, version: int) -> None:
        if version not in self.published:
            self.published.append(version)
            self._world.store.pass_time(self._publishing_s)

    def wake_servers(self, version: int) -> None:
        self.publish(version)

    def offer_devices(self, step: int) -> None:
        """None are lent."""


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_a_lease_stands_still_while_the_servers_do(mode: str) -> None:
    """Pauses as long as a request may wait in them, which by default is four times as long as a lease."""
    pause_s = RunConfig().actor_rollout_ref.rollout.pause_timeout_s
    world = World(lease_s=LEASE_S)
    session = Session(world, pause_s)
    trainer = get_trainer_cls(mode)(session)  # type: ignore[arg-type]
    trainer.on_step_begin(1)
    world.buffer.submit([prompt_of(1)])
    world.store.write_tags([tag_of(prompt_of(1), GroupStatus.RUNNING)])
    world.buffer.collect()
    world.store.pass_time(LEASE_S - 10)
    trainer.on_sample_end(1)
    if mode == "colocate_async":  # else the servers go on while the trainer works
        world.store.pass_time(pause_s)
    trainer.on_step_end(1)
    trainer.on_validate_begin(1)
    assert session.published == [0, 1]
    world.store.pass_time(9.0)
    world.buffer.collect()
    assert world.buffer.accounting().expired == 0
    world.store.pass_time(1.0)  # now it has had its 60 s of servers that work
    world.buffer.collect()
    assert world.buffer.accounting().expired == 1

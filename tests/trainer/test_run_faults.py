"""A whole asynchronous run loses its store in the middle: it ends in time with the cause, and the next process goes on
from what was durable. The bounds in seconds are those of docs/errors.md."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import ray

from tests.trainer.conftest import MakeConfig
from tests.trainer.test_async_modes import SLOW_TOKENS, check_accounts, mode_settings
from tests.transfer.test_store_faults import bound_of
from verl_core.config import RunConfig
from verl_core.errors import VerlError
from verl_core.trainer.ray_session import namespace_of, run_root
from verl_core.trainer.run import train
from verl_core.transfer.host import CONTROLLER, unit_name

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
STEPS = 6


class Killer(threading.Thread):
    """Kills an actor of the run as soon as the record of `step` is there.

    Attributes:
        at: when it did, by the monotonic clock.
    """

    def __init__(self, config: RunConfig, actor: str, step: int) -> None:
        super().__init__(daemon=True)
        self._config, self._actor = config, actor
        self._record = Path(run_root(config)) / f"steps/{step:06d}/record.json"
        self.at = 0.0

    def run(self) -> None:
        until = time.monotonic() + 200
        while not self._record.exists() and time.monotonic() < until:
            time.sleep(0.02)
        ray.kill(ray.get_actor(self._actor, namespace=namespace_of(self._config)))
        self.at = time.monotonic()


@pytest.mark.parametrize(
    ("actor", "fault"), [(unit_name(0), "storage unit killed"), (CONTROLLER, "store controller killed")]
)
def test_a_run_whose_store_dies_ends_with_the_cause_and_is_taken_up_again(
    make_config: MakeConfig, actor: str, fault: str
) -> None:
    settings = [*mode_settings("separate_async", 1, 4), f"trainer.total_training_steps={STEPS}", SLOW_TOKENS]
    config = make_config(f"dies_{actor.replace('-', '_')}", *settings, "trainer.save_freq=2")
    killer = Killer(config, actor, step=3)
    killer.start()
    with pytest.raises(VerlError, match="stor"):
        train(config)
    assert killer.at > 0
    assert time.monotonic() - killer.at < bound_of(fault) + 30  # the other actors of the run are ended, too
    train(config)
    check_accounts(config, STEPS)

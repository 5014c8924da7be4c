"""The length of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.config import resolve
from verl_core.errors import ConfigError
from verl_core.trainer.prompts import total_steps

EPOCH: Any = SimpleNamespace(steps_per_epoch=10)
EPOCHS = ["trainer.total_training_steps=null", "trainer.total_epochs=2"]


def test_steps_are_as_configured_else_all_epochs() -> None:
    assert total_steps(resolve("configs/scripted.yaml", ["trainer.total_training_steps=7"]).config, EPOCH) == 7
    assert total_steps(resolve("configs/scripted.yaml", EPOCHS).config, EPOCH) == 20


@pytest.mark.parametrize(("warmup", "is_refused"), [(19, False), (20, True)])
def test_a_run_of_epochs_that_ends_before_the_policy_is_trained_is_refused(warmup: int, is_refused: bool) -> None:
    settings = [*EPOCHS, "algorithm.adv_estimator=gae", f"trainer.critic_warmup={warmup}"]
    config = resolve("configs/scripted.yaml", settings).config
    if not is_refused:
        assert total_steps(config, EPOCH) == 20
        return
    with pytest.raises(ConfigError, match=r"trainer.critic_warmup: in the first 20 steps .* the run has 20"):
        total_steps(config, EPOCH)

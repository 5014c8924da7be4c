"""Defaults that follow from the mode: one word makes a run asynchronous and keeps it learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import resolve, to_dict

QUICKSTART = str(Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml")
PRESET = "algorithm.rollout_correction.preset"
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"


def asynchronous(mode: str) -> list[str]:
    return [f"trainer.v1.trainer_mode={mode}", "trainer.steps_per_node=1"]


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_a_mode_that_trains_on_older_weights_weighs_their_tokens(mode: str) -> None:
    resolved = resolve(QUICKSTART, asynchronous(mode))
    assert resolved.config.algorithm.rollout_correction.effective.rollout_is == "token"
    assert resolved.origin[PRESET] == f"default with trainer.v1.trainer_mode={mode}"
    again = resolve(to_dict(resolved.config))
    assert again.config == resolved.config


@pytest.mark.parametrize(
    ("overrides", "preset"),
    [
        ([], ""),  # sync
        (
            [*asynchronous("colocate_async"), f"{THRESHOLD}=0", "trainer.v1.colocate_async.num_warmup_batches=0"],
            "",  # on-policy, equal to sync bit by bit
        ),
        ([*asynchronous("separate_async"), f"{PRESET}=disabled"], "disabled"),
        ([*asynchronous("separate_async"), f"{PRESET}=decoupled_geo_rs"], "decoupled_geo_rs"),
        ([*asynchronous("separate_async"), "algorithm.rollout_correction.bypass_mode=true"], ""),
    ],
)
def test_what_is_chosen_or_not_needed_stays(overrides: list[str], preset: str) -> None:
    resolved = resolve(QUICKSTART, overrides)
    assert resolved.config.algorithm.rollout_correction.preset == preset
    assert not resolved.origin[PRESET].startswith("default with")


def test_a_synchronous_run_made_asynchronous_gets_the_default_of_its_mode() -> None:
    written_down = to_dict(resolve(QUICKSTART).config)
    assert resolve(written_down, asynchronous("separate_async")).config.algorithm.rollout_correction.preset

"""The asynchronous modes on real Ray and TransferQueue with the scripted engine: one truth, exact accounts, bounds that
hold, nothing lost by a stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.conftest import MakeConfig
from verl_core.config import RunConfig
from verl_core.record.accounting import accounting
from verl_core.record.rundir import RunDir
from verl_core.record.trajectories import read_trajectories
from verl_core.trainer.finish import Summary
from verl_core.trainer.open import close_trainer, open_trainer
from verl_core.trainer.ray_session import run_root
from verl_core.trainer.run import train
from verl_core.trajectory import Trajectory

pytestmark = pytest.mark.usefixtures("ray_cluster")

MODES = ["colocate_async", "separate_async"]
ONE_NOW = [pytest.param("colocate_async", marks=pytest.mark.slow), "separate_async"]  # a run takes 15 s and more
SLOW_TOKENS = "actor_rollout_ref.rollout.scripted_delay_s=0.03"
STEPS = 6
# Lengths that differ by seconds and are the same in every run: when a batch is there, some group is still at work.
SPREAD = [
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.scripted_lengths.median=4",
    "actor_rollout_ref.rollout.scripted_lengths.p99=32",
]


def mode_settings(mode: str, warmup: float, bound: int, strategy: str = "drop") -> list[str]:
    return [
        f"trainer.v1.trainer_mode={mode}",
        f"trainer.v1.{mode}.num_warmup_batches={warmup}",
        f"trainer.v1.sampler.max_off_policy_threshold={bound}",
        f"trainer.v1.sampler.max_off_policy_strategy={strategy}",
    ]


def rows_by_step(config: RunConfig) -> dict[int, list[Trajectory]]:
    run = RunDir(run_root(config))
    done = [step for step in run.steps() if run.exists(f"{run.step_dir(step)}/trajectories.parquet")]
    return {step: read_trajectories(run, step) for step in done}


def check_accounts(config: RunConfig, steps: int) -> None:
    """Every prompt trained once or dropped with a reason, by the journal and, apart from it, by the steps' own rows."""
    accounts = accounting(RunDir(run_root(config)))
    assert accounts.exact
    assert accounts.trained == steps * config.data.train_batch_size
    assert accounts.served == accounts.trained + sum(accounts.dropped.values())
    assert accounts.in_flight == 0
    ordinals = [sorted({row.ordinal for row in rows}) for rows in rows_by_step(config).values()]
    trained = sorted(ordinal for step in ordinals for ordinal in step)
    assert len(trained) == len(set(trained)) == accounts.trained


@pytest.mark.parametrize("mode", ONE_NOW)
def test_with_nothing_ahead_a_mode_is_sync_bit_for_bit(
    make_config: MakeConfig, undisturbed: Summary, mode: str
) -> None:
    config = make_config(f"zero_{mode}", *mode_settings(mode, 0, 0))
    summary = train(config)
    assert summary.final_weights_sha256 == undisturbed.final_weights_sha256
    assert (summary.mode, summary.staleness_max, summary.dropped) == (mode, 0.0, {})
    check_accounts(config, 4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_running_ahead_keeps_the_bound_and_the_accounts(make_config: MakeConfig, mode: str) -> None:
    ahead = [*mode_settings(mode, 1, 1, "wait"), f"trainer.total_training_steps={STEPS}", SLOW_TOKENS]
    config = make_config(f"ahead_{mode}", *ahead)
    summary = train(config)
    check_accounts(config, STEPS)
    assert summary.dropped == {}
    assert 0 < summary.staleness_mean <= summary.staleness_max <= 1
    for step, rows in rows_by_step(config).items():
        for row in rows:
            versions = [segment.weight_version for segment in row.segments]
            assert versions == sorted(versions)
            assert step - 2 <= versions[0] <= versions[-1] <= step - 1
            assert len(row.response_ids) <= config.data.max_response_length
    assert (summary.overlap_s > 0) == (mode == "separate_async")
    written = json.loads((Path(run_root(config)) / "summary.json").read_text())
    assert {"overlap_s", "staleness_mean", "staleness_max", "dropped", "wall_s"} <= set(written)


def test_responses_that_are_cut_off_go_on_under_the_next_weights(make_config: MakeConfig) -> None:
    settings = [*mode_settings("colocate_async", 1, 3), f"trainer.total_training_steps={STEPS}", SLOW_TOKENS]
    config = make_config("cut", *settings, *SPREAD)
    train(config)
    cut = [row for rows in rows_by_step(config).values() for row in rows if len(row.segments) > 1]
    assert cut  # 0.03 s a token: the batch is there before everybody is done
    assert all(len({segment.weight_version for segment in row.segments}) == len(row.segments) for row in cut)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_takes_over_tops_up_and_loses_nothing(make_config: MakeConfig, mode: str) -> None:
    settings = [*mode_settings(mode, 1, 4), f"trainer.total_training_steps={STEPS}", "trainer.save_freq=3"]
    config = make_config(f"taken_{mode}", *settings)
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        trainer.rollout(2)  # and no more: its groups are claimed, others wait or run
    close_trainer(config)
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(2)
        trainer.step(3)
        served = accounting(RunDir(run_root(config))).served
        assert served == 16  # three steps and the warm-up, served once
    close_trainer(config)
    train(config)
    check_accounts(config, STEPS)


@pytest.mark.slow
def test_a_mode_may_change_between_two_runs_of_a_directory_only_by_a_branch(make_config: MakeConfig) -> None:
    first = make_config("origin", *mode_settings("separate_async", 1, 4), "trainer.save_freq=2")
    with open_trainer(first) as trainer:
        trainer.begin()
        trainer.step(1)
        trainer.step(2)
    close_trainer(first)
    origin = Path(run_root(first)) / "checkpoints/000002"
    branch = make_config(
        "branch",
        *mode_settings("colocate_async", 1, 4),
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={origin}",
    )
    train(branch)
    rows = {step: {row.ordinal for row in rows} for step, rows in rows_by_step(branch).items()}
    earlier = {step: {row.ordinal for row in rows} for step, rows in rows_by_step(first).items() if step <= 2}
    trained = [ordinal for part in (earlier, rows) for step in part.values() for ordinal in step]
    assert sorted(trained) == list(range(16))  # the branch first trains on what its origin had served and not used


@pytest.mark.slow
def test_lent_devices_serve_while_the_trainer_waits_and_are_back_when_it_trains(make_config: MakeConfig) -> None:
    settings = [
        *mode_settings("separate_async", 0, 4),
        "trainer.v1.separate_async.hybrid_rollout.enable_switch=true",
        f"trainer.total_training_steps={STEPS}",
        SLOW_TOKENS,
    ]
    config = make_config("lending", *settings)
    with open_trainer(config) as trainer:
        trainer.begin()
        lent = trainer.session.lent
        assert lent is not None
        for step in range(1, STEPS + 1):
            trainer.rollout(step)
            assert not lent.is_out
            assert lent._lent.states()["lent-0"].asleep  # type: ignore[union-attr]
            trainer.reward(step)
            trainer.advantage(step)
            trainer.update(step)
            assert lent.is_out or step > 1  # the first time nothing was measured that could speak against it
        assert lent._lent.usage()["lent-0"].tokens > 0
        state = lent.lending.state_dict()
        assert not lent.is_out  # after the last step nobody needs more
        assert 1 <= len(state["to_rollout_s"]) <= 3  # the window
        assert state["missing"] > 0
    close_trainer(config)
    check_accounts(config, STEPS)
    with open_trainer(config) as trainer:  # an ended run that is opened again knows what it learnt
        assert trainer.session.lent is not None
        assert trainer.session.lent.lending.state.missing > 0

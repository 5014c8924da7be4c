"""Whole runs with the scripted engine on real Ray and TransferQueue: one truth, exact accounts, nothing lost."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
import ray

from tests.trainer.conftest import MakeConfig
from verl_core.errors import CheckpointError, ConfigError, ResourceError, RewardError
from verl_core.record.accounting import accounting
from verl_core.record.rewards import read_rewards
from verl_core.record.rundir import RunDir
from verl_core.trainer.finish import Summary, finish
from verl_core.trainer.open import close_trainer, leave_trainer, open_trainer
from verl_core.trainer.ray_session import namespace_of, run_root
from verl_core.trainer.run import train

LEGACY = "trainer.use_v1=false"  # where the store plays no part: two processes less to start

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_sync_and_legacy_path_give_the_same_weights(make_config: MakeConfig, undisturbed: Summary) -> None:
    legacy = train(make_config("legacy", "trainer.use_v1=false"))
    assert legacy.final_weights_sha256 == undisturbed.final_weights_sha256
    for summary in (undisturbed, legacy):
        accounts = accounting(RunDir(summary.run_dir))
        assert accounts.exact
        assert (accounts.served, accounts.trained, accounts.dropped) == (16, 16, {})
        written = json.loads(Path(summary.run_dir, "summary.json").read_text())
        assert written["steps"] == 4
        assert written["final_weights_sha256"] == summary.final_weights_sha256
        assert set(written["versions"]) == {"ray", "vllm", "transferqueue", "torch", "flytekit"}
        assert Path(written["report"]).read_text().startswith("<!")
        assert summary.reward_first5 > 0.1  # groups differ: equal weights say something about equal updates
        assert summary.val_before is None
        assert summary.val_after is not None


def test_a_process_that_stops_after_any_stage_is_continued_exactly(
    make_config: MakeConfig, undisturbed: Summary
) -> None:
    config = make_config("stopped")
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        trainer.rollout(2)
    close_trainer(config)
    with open_trainer(config) as trainer:  # nothing of the first process is left but its files
        trainer.begin()
        assert trainer.session.first_open_step() == 2
        trainer.step(2)
        trainer.rollout(3)
        trainer.reward(3)
        trainer.advantage(3)
    close_trainer(config)
    assert train(config).final_weights_sha256 == undisturbed.final_weights_sha256
    assert accounting(RunDir(run_root(config))).exact


@pytest.mark.slow
def test_actors_that_vanish_between_two_nodes_are_rebuilt(make_config: MakeConfig, undisturbed: Summary) -> None:
    config = make_config("vanished")
    with open_trainer(config) as trainer:
        trainer.begin()
        for step in (1, 2, 3):
            trainer.step(step)
        ray.kill(ray.get_actor("policy-0", namespace_of(config)))
    leave_trainer(config)  # the node's process ends; the other actors stay
    with open_trainer(config) as trainer:
        assert trainer.session.policy.steps_done() == 0  # a fresh policy: its predecessor is gone
        trainer.step(4)  # checkpoint 2, then the stored batch of step 3
        assert finish(trainer.session).final_weights_sha256 == undisturbed.final_weights_sha256


@pytest.mark.slow
def test_a_broken_checkpoint_is_skipped_aloud(
    make_config: MakeConfig, undisturbed: Summary, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config("broken", LEGACY)
    with open_trainer(config) as trainer:
        trainer.begin()
        for step in (1, 2, 3):
            trainer.step(step)
    close_trainer(config)
    root = Path(run_root(config))
    weights = root / "checkpoints/000002/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"\0" * 8)
    with caplog.at_level(logging.WARNING):
        assert train(config).final_weights_sha256 == undisturbed.final_weights_sha256  # replayed from the start policy
    assert "checkpoint of step 2 is broken and was skipped" in caplog.text


@pytest.mark.slow
def test_a_step_that_cannot_be_rebuilt_says_which_batch_is_missing(make_config: MakeConfig) -> None:
    config = make_config("gap", LEGACY, "trainer.save_freq=-1")
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        trainer.step(2)
    close_trainer(config)
    (Path(run_root(config)) / "steps/000001/batch.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cannot rebuild step 2.*step 1 left no batch"):
        train(config)


@pytest.mark.slow
def test_a_used_directory_is_refused_for_another_configuration_and_with_resume_disabled(
    make_config: MakeConfig,
) -> None:
    config = make_config("used", LEGACY)
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
    close_trainer(config)
    with pytest.raises(ConfigError, match=r"belongs to another configuration.*rollout.n: 4 -> 2"):
        train(make_config("used", LEGACY, "actor_rollout_ref.rollout.n=2"))
    with pytest.raises(ConfigError, match=r"holds a run already and trainer.resume_mode=disable"):
        train(make_config("used", LEGACY, "trainer.resume_mode=disable"))


def test_too_few_devices_is_told_before_any_actor_starts(make_config: MakeConfig) -> None:
    with pytest.raises(ResourceError, match="asks for 8 cpu devices, the cluster has 4"):
        train(make_config("large", "trainer.n_gpus_per_node=8"))
    with pytest.raises(ResourceError, match="asks for 1 cuda devices, the cluster has 0"):
        train(make_config("cuda", "trainer.device=cuda"))


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_of_generating_does_not_stop_the_step(make_config: MakeConfig) -> None:
    config = make_config("killed", "actor_rollout_ref.rollout.scripted_delay_s=0.05")
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        server = ray.get_actor("server-0", namespace_of(config))
        killer = threading.Timer(0.3, lambda: ray.kill(server, no_restart=False))
        killer.start()
        trainer.step(2)
        killer.join()
        rows = trainer.session.files.trajectories(2)
        assert len(rows) == 16
        assert {segment.weight_version for row in rows for segment in row.segments} == {1}  # never the start weights


def test_rewards_that_fail_are_counted_and_a_group_without_any_is_dropped(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    source = tmp_path / "grumpy.py"
    source.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if str(ground_truth) in ('7', '9'):\n"
        "        raise RuntimeError('no sevens')\n"
        "    return 1.0\n"
    )
    custom = f"reward.custom_reward_function.path={source}"
    with open_trainer(make_config("grumpy", LEGACY, custom, "reward.error_budget=1.0")) as trainer:
        trainer.begin()
        for step in (1, 2, 3, 4):
            trainer.step(step)
        accounts = accounting(trainer.session.run)
        assert accounts.exact
        assert accounts.trained + sum(accounts.dropped.values()) == 16
        assert list(accounts.dropped) == ["reward"]
        run = trainer.session.run
        lost = sum(reward.quarantined for step in (1, 2, 3, 4) for reward in read_rewards(run, step))
        assert finish(trainer.session).unscored == lost > 0
        assert "samples without a score" in run.read("report.html").decode()
    with open_trainer(make_config("strict", LEGACY, custom, "reward.error_budget=0.01")) as trainer:
        trainer.begin()
        with pytest.raises(RewardError, match="no sevens"):
            all(trainer.step(step) for step in (1, 2, 3, 4))

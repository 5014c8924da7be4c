"""Runs with a critic: both networks are checkpointed together and brought to a step one by one, whatever stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from tests.trainer.conftest import MakeConfig, stop_in_step_4
from verl_core.config import RunConfig
from verl_core.record.rundir import RunDir
from verl_core.trainer import evaluate as evaluation
from verl_core.trainer.open import close_trainer, leave_trainer, open_trainer
from verl_core.trainer.ppo import PPOTrainer
from verl_core.trainer.ray_session import namespace_of, run_root
from verl_core.trainer.run import train
from verl_core.trainer.session import Session

PPO = [
    "algorithm.adv_estimator=gae",
    "algorithm.lam=0.9",
    "algorithm.use_kl_in_reward=true",
    "critic.optim.lr=1e-3",
    "trainer.critic_warmup=1",
]
TESTING = "timing_s/testing"
LEGACY = "trainer.use_v1=false"  # where the store plays no part: two processes less to start

pytestmark = pytest.mark.usefixtures("ray_cluster")


def digests(session: Session) -> dict[str, str]:
    return {name: engine.weights_sha256() for name, engine in session.trained.items()}


@pytest.mark.slow
def test_policy_and_critic_are_brought_to_a_step_whatever_stopped(make_config: MakeConfig) -> None:
    config = make_config("ppo", *PPO, LEGACY)
    with open_trainer(config) as trainer:
        trainer.begin()
        session = trainer.session
        start = digests(session)
        first = trainer.step(1).metrics
        assert first["actor/updates"] == 0
        assert first["critic/updates"] == 2
        after = digests(session)
        assert after["actor"] == start["actor"]  # the warm-up of the critic
        assert after["critic"] != start["critic"]
        metrics = trainer.step(2).metrics
        assert digests(session)["actor"] != start["actor"]
        assert {"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm", "critic/lr"} < set(
            metrics
        )
        assert {"critic/values/mean", "critic/vf_explained_var", "timing_s/values", "timing_s/update_critic"} < set(
            metrics
        )
        assert metrics["actor/reward_kl_penalty_coeff"] == 0.001
        trainer.step(3)
        third = digests(session)
        ray.kill(ray.get_actor("critic-0", namespace_of(config)))
    leave_trainer(config)
    with open_trainer(config) as trainer:  # checkpoint 2 and the stored batch of step 3 for the critic alone
        session = trainer.session
        assert [engine.steps_done() for engine in session.trained.values()] == [0, 3]
        session.restore(3)
        assert digests(session) == third
        # A crash between the two updates of step 4 leaves the critic one step ahead.
        trainer.rollout(4)
        trainer.reward(4)
        trainer.advantage(4)
        session.trained["critic"].update(session.files.batch(4), 4)
        trainer.update(4)
        fourth = digests(session)
        for engine in session.trained.values():
            engine.reset()
        assert digests(session) == start
        session.restore(4)  # the checkpoint of step 4
        assert digests(session) == fourth
        shutil.rmtree(Path(run_root(config)) / "checkpoints")
        for engine in session.trained.values():
            engine.reset()
        session.restore(4)  # all four batches from the start
        assert digests(session) == fourth


@pytest.mark.slow
def test_every_mode_and_a_resumed_run_train_the_same_policy_and_critic(make_config: MakeConfig) -> None:
    whole = train(make_config("ppo_sync", *PPO))
    expected = (whole.final_weights_sha256, whole.final_critic_sha256)
    for mode in ("colocate_async", "separate_async"):
        ahead = [f"trainer.v1.trainer_mode={mode}", f"trainer.v1.{mode}.num_warmup_batches=0"]
        bound = "trainer.v1.sampler.max_off_policy_threshold=0"
        summary = train(make_config(f"ppo_{mode}", *PPO, *ahead, bound))
        assert (summary.final_weights_sha256, summary.final_critic_sha256) == expected
    config = make_config("ppo_stopped", *PPO)
    stop_in_step_4(config)
    summary = train(config)
    assert (summary.final_weights_sha256, summary.final_critic_sha256) == expected


@pytest.mark.slow
def test_a_branch_takes_both_networks_from_its_checkpoint(make_config: MakeConfig) -> None:
    """With the settings of its origin it ends where that did; rebuilt after a crash it knows where it came from."""
    origin = make_config("ppo_origin", *PPO, LEGACY)
    at = {}
    with open_trainer(origin) as trainer:
        trainer.begin()
        at[0] = digests(trainer.session)
        for step in (1, 2, 3, 4):
            trainer.step(step)
            at[step] = digests(trainer.session)
    close_trainer(origin)
    assert len({stage["critic"] for stage in at.values()}) == 5
    checkpoint = Path(run_root(origin)) / "checkpoints/000002"
    there = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
    with open_trainer(make_config("ppo_branch", *PPO, LEGACY, *there)) as trainer:
        session = trainer.session
        trainer.begin()
        assert session.first_open_step() == 3
        session.restore(2)
        assert digests(session) == at[2]
        trainer.step(3)
        assert digests(session) == at[3]
        for engine in session.trained.values():
            engine.reset()
        assert digests(session) == at[0]
        session.restore(3)  # the origin's checkpoint, then the branch's own batch
        assert digests(session) == at[3]
        trainer.step(4)
        assert digests(session) == at[4]


@pytest.mark.slow
def test_a_run_with_a_critic_is_evaluated_without_it(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("ppo_judged", *PPO, LEGACY, "trainer.total_training_steps=2", "trainer.test_freq=1")
    with open_trainer(config) as trainer:
        trainer.begin()
        trainer.step(1)
        trainer.step(2)
        trained = digests(trainer.session)
    close_trainer(config)
    opened: list[dict[str, str]] = []

    @contextmanager
    def watched(apart: RunConfig) -> Iterator[PPOTrainer]:
        with open_trainer(apart) as judge:
            yield judge
            opened.append(digests(judge.session))

    monkeypatch.setattr(evaluation, "open_trainer", watched)
    checkpoint = Path(run_root(config)) / "checkpoints/000002"
    found = evaluation.evaluate(config, str(checkpoint))
    measured = json.loads(RunDir(run_root(config)).read("steps/000002/validation.json"))
    assert {**found, TESTING: 0.0} == {**measured, TESTING: 0.0}  # what the run measured itself, but for the seconds
    assert opened == [{"actor": trained["actor"]}]
    assert config.needs_critic  # the caller's settings are as they were

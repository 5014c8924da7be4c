"""The greedy baseline of remax: scored, subtracted, never trained on."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tests.trainer.conftest import MakeConfig
from tests.trainer.test_stages import Files, Policy, row
from verl_core.config import RunConfig
from verl_core.record.accounting import accounting
from verl_core.record.rundir import RunDir
from verl_core.trainer.greedy import without_baseline
from verl_core.trainer.open import open_trainer
from verl_core.trainer.ray_session import run_root
from verl_core.trainer.stages.advantage import advantage
from verl_core.trajectory import Reward, Trajectory


def group(uid: str, ordinal: int) -> list[Trajectory]:
    """Two sampled sessions and the greedy one, session 2."""
    return [row(uid, session, 2, ordinal=ordinal) for session in range(3)]


def remax(files: Files) -> None:
    """The advantage stage of a remax run with n=2."""
    config = RunConfig()
    config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n = "remax", 2
    session = SimpleNamespace(
        config=config, files=files, policy=Policy(), critic=None, training=lambda *_: nullcontext()
    )
    advantage(session, 1)  # type: ignore[arg-type]


def test_the_greedy_score_is_the_baseline_of_its_siblings_and_no_row_of_the_batch() -> None:
    scores = {"a_0_0": 1.0, "a_1_0": 0.0, "a_2_0": 0.75, "b_0_0": 2.0, "b_1_0": 3.0, "b_2_0": 1.0}
    files = Files([*group("a", 0), *group("b", 1)], [Reward(key, score) for key, score in scores.items()])
    remax(files)
    batch, _ = files.saved
    assert batch.keys == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    assert batch.columns["advantages"].reshape(4, 2)[:, 0].tolist() == [0.25, -0.75, 1.0, 2.0]


def test_a_group_without_a_baseline_is_not_trained_on_and_says_why() -> None:
    rows = [*group("a", 0), *group("b", 1)]
    rewards = [Reward(each.key, 1.0) for each in rows if each.key != "a_2_0"]
    rewards.append(Reward("a_2_0", 0.0, status="timeout", reason="took too long"))
    files = Files(rows, rewards)
    remax(files)
    batch, _ = files.saved
    assert batch.response_mask.reshape(4, 2).any(axis=1).tolist() == [False, False, True, True]
    assert not batch.columns["advantages"][:4].any()
    assert without_baseline(rows, rewards, 2) == {"a": "no baseline: took too long"}
    assert without_baseline(rows, rewards, None) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("estimator", ["remax", "optimal_token_baseline", "tir_optimal_token_baseline"])
def test_the_estimators_with_inputs_of_their_own_train(make_config: MakeConfig, estimator: str) -> None:
    config = make_config(estimator, f"algorithm.adv_estimator={estimator}", "trainer.total_training_steps=2")
    with open_trainer(config) as trainer:
        trainer.begin()
        metrics = trainer.step(1).metrics
        trainer.step(2)
        rows, batch = trainer.session.files.trajectories(1), trainer.session.files.batch(1)
        assert trainer.session.policy.steps_done() == 2
    greedy = estimator == "remax"
    assert len(rows) == 4 * (5 if greedy else 4)
    assert len(batch) == 16
    assert np.isfinite(metrics["actor/grad_norm"])
    assert metrics["actor/grad_norm"] > 0
    assert ("critic/greedy_score/mean" in metrics) is greedy
    assert ("sum_pi_squared" in batch.columns) is not greedy
    books = accounting(RunDir(run_root(config)))
    assert (books.trained, books.lost, books.trained_twice) == (8, 0, 0)

"""Ranks as Ray actors: the same numbers as in process, and every way to lose a rank is an error in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import MakeBatch, MakeConfig
from tests.engine.test_update import assert_same, weights_of
from verl_core.config.schema import RunConfig
from verl_core.engine.local import LocalPolicy
from verl_core.engine.worker_group import PolicyGroup
from verl_core.errors import DeadlineExceeded, ModelError, PolicyError, ResourceError

pytestmark = pytest.mark.usefixtures("ray_cluster")

SETTINGS: dict[str, Any] = {
    "use_kl_loss": True,
    "kl_loss_coef": 0.2,
    "entropy_coeff": 0.02,
    "ppo_max_token_len_per_gpu": 40,
}


def attach(config: RunConfig, folder: Path, namespace: str) -> PolicyGroup:
    return PolicyGroup.attach_or_launch(config, namespace, 5, lambda rank: {"num_cpus": 0}, str(folder), "cpu")


def names(namespace: str) -> list[str]:
    import ray

    return [
        entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == namespace
    ]


@pytest.fixture(scope="module")
def two(
    ray_cluster: object, make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PolicyGroup, Path]]:
    """Two ranks, and a checkpoint of them before the first step."""
    folder = tmp_path_factory.mktemp("two")
    config = make_config(world=2, enable_gradient_checkpointing=True, **SETTINGS)  # recomputing must not show either
    group = attach(config, folder, "verl-engine-two")
    start = folder / "start"
    start.mkdir()
    group.save(str(start))
    yield group, start
    group.shutdown()


@pytest.fixture
def pair(two: tuple[PolicyGroup, Path]) -> PolicyGroup:
    """Two ranks at step 0."""
    group, start = two
    group.load(str(start))
    return group


@pytest.mark.slow
def test_two_ranks_reject_what_one_rejects(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    config = make_config(world=2, **SETTINGS)
    config.algorithm.rollout_correction.preset = "bypass_ppo_clip_k3_rs"
    group = attach(config, tmp_path, "verl-engine-reject")
    try:
        config.trainer.n_gpus_per_node = 1
        single = LocalPolicy(config, 5, str(tmp_path / "one"))
        batch = make_batch()
        own = single.old_log_probs(batch).log_probs
        noise = np.random.default_rng(3).normal(scale=0.15, size=len(own)).astype(np.float32)
        batch = batch.with_column("old_log_probs", own - noise)
        expected, got = single.update(batch, 1), group.update(batch, 1)
        assert 0.1 < expected["actor/rollout_kept_share"] < 0.95
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-5)
    finally:
        group.shutdown()


def test_two_ranks_give_the_numbers_of_one(
    pair: PolicyGroup, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    single = LocalPolicy(make_config(**SETTINGS), 5, str(tmp_path / "w"))
    assert pair.weights_sha256() == single.weights_sha256()
    # A mini-batch of one short row leaves a rank without work: it still takes part.
    lone = make_batch(groups=1, n=1, seed=5)
    for step, batch in enumerate((make_batch(seed=1), lone, make_batch(seed=2)), start=1):
        one, other = single.old_log_probs(batch), pair.old_log_probs(batch)
        np.testing.assert_allclose(other.log_probs, one.log_probs, atol=5e-5)
        assert one.entropy is not None
        assert other.entropy is not None
        np.testing.assert_allclose(other.entropy, one.entropy, atol=5e-5)
        ours, theirs = single.ref_log_probs(batch).log_probs, pair.ref_log_probs(batch).log_probs
        np.testing.assert_allclose(theirs, ours, atol=5e-5)
        assert pair.update(batch, step) == pytest.approx(single.update(batch, step), rel=2e-4, abs=2e-5)
    assert pair.steps_done() == 3
    assert_same(saved(pair, make_config, tmp_path), weights_of(single, tmp_path / "one"), tolerance=5e-5)


def saved(group: PolicyGroup, make_config: MakeConfig, folder: Path) -> dict[str, Any]:
    """Weights of a group, by way of a checkpoint that one rank loads."""
    (folder / "two").mkdir()
    group.save(str(folder / "two"))
    single = LocalPolicy(make_config(**SETTINGS), 5, str(folder / "w"))
    single.load(str(folder / "two"))
    assert single.weights_sha256() == group.weights_sha256()
    return weights_of(single, folder / "back")


def test_what_two_ranks_saved_goes_on_with_one_and_with_two(
    pair: PolicyGroup, make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    pair.update(make_batch(seed=1), 1)
    (tmp_path / "two").mkdir()
    pair.save(str(tmp_path / "two"))
    going_on = pair.update(make_batch(seed=2), 2)
    digest = pair.weights_sha256()
    pair.load(str(tmp_path / "two"))
    assert pair.steps_done() == 1
    assert pair.update(make_batch(seed=2), 2) == going_on  # the moments came back, bit for bit
    assert pair.weights_sha256() == digest
    single = LocalPolicy(make_config(**SETTINGS), 5, str(tmp_path / "w"))
    single.load(str(tmp_path / "two"))
    assert single.update(make_batch(seed=2), 2) == pytest.approx(going_on, rel=2e-4, abs=2e-5)


def test_two_ranks_publish_whole_tensors(pair: PolicyGroup, make_config: MakeConfig, tmp_path: Path) -> None:
    from verl_core.engine.digest import weights_digest
    from verl_core.weights.shm import ShmReceiver

    manifest = pair.publish(4)
    received = [(name, tensor.clone()) for name, tensor in ShmReceiver().receive(manifest)]
    assert (manifest.version, weights_digest(received)) == (4, pair.weights_sha256())


def test_a_number_that_is_not_finite_on_one_rank_stops_both_and_moves_nothing(
    pair: PolicyGroup, make_batch: MakeBatch
) -> None:
    digest, bad = pair.weights_sha256(), make_batch(seed=3, tools=False)
    bad.columns["advantages"][0] = np.nan
    with pytest.raises(PolicyError, match=f"step 1: the loss is not finite.*{bad.keys[0]}"):
        pair.update(bad, 1)
    assert (pair.steps_done(), pair.weights_sha256()) == (0, digest)
    with pytest.raises(ValueError, match="update of step 9"):
        pair.update(make_batch(), 9)
    pair.update(make_batch(), 1)


@pytest.mark.slow
def test_life_and_death_of_a_rank(make_config: MakeConfig, make_batch: MakeBatch, tmp_path: Path) -> None:
    space, config = "verl-engine-one", make_config(**SETTINGS)
    group = attach(config, tmp_path / "w", space)
    try:
        local = LocalPolicy(config, 5, str(tmp_path / "v"))
        for step in (1, 2):
            batch = make_batch(seed=step)
            assert group.update(batch, step) == pytest.approx(local.update(batch, step), rel=1e-5)
        digest = group.weights_sha256()

        again = attach(config, tmp_path / "w", space)  # as another process would: taken over, not started again
        assert (again.steps_done(), again.weights_sha256()) == (2, digest)
        again._config.actor_rollout_ref.actor.call_timeout_s = 1e-3
        with pytest.raises(DeadlineExceeded, match=r"old_log_probs of 1 policy ranks.*no answer from ranks \[0\]"):
            again.old_log_probs(make_batch(groups=40, n=20))
        with pytest.raises(PolicyError, match="broken"):
            again.steps_done()

        config.actor_rollout_ref.actor.call_timeout_s = 60.0
        os.kill(group.status()[0].pid, signal.SIGKILL)
        with pytest.raises(PolicyError, match="policy rank 0 died during update"):
            group.update(make_batch(), 3)
        fresh = attach(config, tmp_path / "w", space)
        assert fresh.steps_done() == 0

        config.actor_rollout_ref.model.path = str(tmp_path / "nothing")  # another run: the old group is replaced
        with pytest.raises(ModelError, match="is not a model folder"):
            attach(config, tmp_path / "w", space)
        assert names(space) == []
    finally:
        group.shutdown()


def test_ranks_that_do_not_answer_have_the_start_budget_not_that_of_a_step(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, asked = make_config(), []
    config.trainer.init_timeout_s = 7.0

    def silent(actors: list[Any], method: str, arguments: tuple[Any, ...], seconds: float, who: str) -> list[Any]:
        asked.append((method, seconds))
        raise DeadlineExceeded("status", seconds, "busy")

    monkeypatch.setattr("verl_core.engine.rank_group.call_all", silent)
    assert not PolicyGroup(config, "verl-engine-nobody", [object()])._usable("any")
    assert asked == [("status", 7.0)]


def test_a_rank_is_told_its_device(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ResourceError, match="policy rank 0 was placed on a GPU and sees none"):
        LocalPolicy(make_config(), 5, str(tmp_path / "w"), device="cuda")

"""ray.mode=split: two RayJobs, each with a Ray cluster of its own. RAY_ADDRESS=local gives every process an empty
cluster that dies with it, as KubeRay does."""

from __future__ import annotations

import concurrent.futures as cf
import json
import time
from pathlib import Path

import pytest

from tests.flyte.propeller import NodeFailed, Package, Propeller
from tests.flyte.test_propeller import TRAIN, by_node, inputs, job_of, literals
from tests.rollout.local import bound_s
from verl_core.config import resolve, to_dict
from verl_core.trainer.evaluate import in_one_cluster
from verl_core.trainer.run import ready, train

ROLLOUT, TRAINER = "tasks.streams.rollout_stream_job", "tasks.streams.train_stream_job"
ON_POLICY = ("trainer.v1.sampler.max_off_policy_threshold=0", "trainer.v1.separate_async.num_warmup_batches=0")


def test_an_evaluation_needs_one_cluster() -> None:
    """Its settings are those of a run that resolves, on the devices of the trainer's cluster."""
    overrides = [
        "ray.mode=split",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.device=cuda",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.nnodes=2",
        "ray.worker.gpu=1",
        "ray.rollout.gpu=2",
        "trainer.v1.buffer.max_groups=64",
    ]
    config = resolve({"defaults": ["scripted"]}, overrides).config
    assert (config.world_size, config.num_devices) == (1, 3)
    alone = in_one_cluster(config)
    assert resolve(to_dict(alone)).config == alone
    assert (alone.num_devices, alone.trainer.v1.trainer_mode, alone.ray.mode) == (1, "sync", "shared")
    shared = resolve({"defaults": ["scripted"]}).config
    assert in_one_cluster(shared) == shared


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_clusters_train_what_one_trains(package: Package, image: Path, ray_cluster: None, tmp_path: Path) -> None:
    """With nothing ahead, the weights are those of the synchronous mode in one process, bit for bit."""
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": "local"})
    overrides = [
        "ray.mode=split",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.total_training_steps=3",
        "trainer.experiment_name=emulated-split",
        "ray.worker={gpu: 1, replicas: 2}",
        "ray.rollout={gpu: 4, replicas: 3}",
    ]
    outputs = propeller.run(TRAIN, inputs(tmp_path, *overrides, *ON_POLICY))

    nodes = by_node(propeller)
    assert "cluster" not in nodes
    assert nodes["rollout-stream"].type == nodes["train-stream"].type == "ray"
    assert outputs["held_s"].scalar.primitive.float_value == 0
    for name, replicas, gpus in (("rollout_stream_job", 3, "4"), ("train_stream_job", 2, "1")):
        (workers,) = job_of(tmp_path / "flyte", name)["rayCluster"]["workerGroupSpec"]
        assert (workers["replicas"], workers["rayStartParams"]["num-gpus"]) == (replicas, gpus)

    run = tmp_path / "runs" / "emulated-split"
    assert not (run / "weights").exists()  # the run is over
    plain = ["trainer.total_training_steps=3", f"trainer.default_local_dir={tmp_path / 'one'}"]
    expected = train(resolve({"defaults": ["scripted"]}, plain).config)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["final_weights_sha256"] == expected.final_weights_sha256
    assert summary["steps"] == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trainer_ends_when_the_cluster_of_the_store_dies(package: Package, image: Path, tmp_path: Path) -> None:
    """The rollout's process is its cluster's: store, servers and agent workers die with it."""
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": "local"}, aborts=False)
    overrides = [
        f"trainer.default_local_dir={tmp_path / 'runs'}",
        "trainer.experiment_name=emulated-split",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.total_training_steps=5000",
        "trainer.test_freq=-1",
        "data.prepare.val_size=0",
        "ray.mode=split",
        "ray.up_timeout_s=400",
    ]
    config = ready(resolve({"defaults": ["scripted"]}, overrides).config)
    given = literals(config=to_dict(config), meeting="m")
    record = tmp_path / "runs" / "emulated-split" / "steps" / "000001" / "record.json"
    with cf.ThreadPoolExecutor(2) as pool:
        rollout, trainer = (pool.submit(propeller.task, side, given) for side in (ROLLOUT, TRAINER))
        until = time.monotonic() + 500
        while not record.exists():
            assert not rollout.done() or rollout.result()
            assert not trainer.done() or trainer.result()
            assert time.monotonic() < until
            time.sleep(0.2)
        killed = propeller.kill(ROLLOUT)
        with pytest.raises(NodeFailed, match=r"StreamFailed|StoreError|DeadlineExceeded|RolloutError") as told:
            trainer.result(timeout=300)
    (attempt,) = propeller.spans("train_stream_job")
    assert attempt.ended - killed < bound_s("the Ray cluster of the rollout side dies (`ray.mode=split`)"), told.value

"""A training run node by node, each in a fresh process through the real `pyflyte-execute`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine

from tests.flyte.propeller import Attempt, Literals, NodeFailed, Package, Propeller
from verl_core.config import resolve, to_dict
from verl_core.deadline import Deadline

TRAIN = "workflows.train.train"
STAGES = ("rollout", "reward", "advantage", "update")


def literals(**values: Any) -> Literals:
    """Inputs of a workflow, as a client sends them."""
    context, kinds = FlyteContextManager.current_context(), {"config": dict, "overrides": list[str]}
    found = {}
    for name, value in values.items():
        kind = kinds.get(name, type(value))
        literal = TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind))
        found[name] = literal.to_flyte_idl()
    return found


def inputs(root: Path, *overrides: str) -> Literals:
    return literals(
        config={"defaults": ["scripted"]}, overrides=[f"trainer.default_local_dir={root / 'runs'}", *overrides]
    )


@pytest.fixture
def address(ray_cluster: None) -> Iterator[str]:
    """The session's Ray stands for the held cluster: nodes join it as drivers, by the address of its control store."""
    import ray

    yield ray.get_runtime_context().gcs_address
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"].startswith("verl-emulated"):
            ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def head(image: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A Ray head with a Ray Client server, as in the holder's pod: its address inside the pod, and that for nodes."""
    port, client = free_ports(2)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--include-dashboard=false"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}", "--num-cpus=4"]
    # Ray's sockets lie below its folder, and a socket's path has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="verl-ray-", dir="/tmp") as folder,
        (tmp_path / "head.log").open("wb") as log,
    ):
        env = {**os.environ, "PYTHONPATH": str(image)}
        env.pop("RAY_ADDRESS")
        process = subprocess.Popen([*command, f"--temp-dir={folder}"], env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for_port(client, process)
            yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
        finally:
            process.terminate()  # `--block` ends what it started
            process.wait(60)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = Deadline(f"port {port} of the Ray head", 180, lambda: f"exit code {process.poll()}")
    while socket.socket().connect_ex(("127.0.0.1", port)):
        deadline.check()
        time.sleep(0.5)


def by_node(propeller: Propeller) -> dict[str, Attempt]:
    """Last attempt of each node, by the last part of its path."""
    return {attempt.node.rpartition("/")[2]: attempt for attempt in propeller.attempts}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_node_of_a_run_on_a_held_cluster(package: Package, image: Path, address: str, tmp_path: Path) -> None:
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": address, "VERL_RAY_CLIENT": address})
    given = inputs(
        tmp_path,
        "trainer.total_training_steps=1",
        "trainer.experiment_name=emulated-shared",
        "ray.max_hours=300",
        "ray.worker={gpu: 2, replicas: 3}",  # nothing here has devices; the job that is asked for must say so
    )
    outputs = propeller.run(TRAIN, given)

    nodes = by_node(propeller)
    assert all(attempt.exit_code == 0 and attempt.number == 0 for attempt in propeller.attempts)
    assert {f"{stage}-000001" for stage in STAGES} < set(nodes)
    assert {"cluster", "begin", "finish"} < set(nodes)

    job = job_of(tmp_path / "flyte", "hold_cluster")
    (workers,) = job["rayCluster"]["workerGroupSpec"]
    assert workers["replicas"] == 3
    assert workers["rayStartParams"]["num-gpus"] == "2"

    limits = {node.id: node.metadata.timeout.seconds for node in dynamic_job(tmp_path / "flyte").nodes}
    assert limits.pop("release") == 0
    assert set(limits.values()) == {300 * 3600}

    held, steps = nodes["cluster"], [nodes[f"{stage}-000001"] for stage in STAGES]
    assert held.type == "ray"
    assert all(held.started < step.started and step.ended < held.ended for step in steps)  # at the same time
    assert all(a.ended <= b.started for a, b in pairwise(steps))  # one after the other

    run = tmp_path / "runs" / "emulated-shared"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 1
    assert outputs["o3" if "o3" in outputs else "steps"].scalar.primitive.integer == 1
    assert outputs["report"].scalar.blob.uri == str(run / "report.html")
    assert outputs["checkpoint"].scalar.blob.uri == str(run / "checkpoints" / "000001")
    assert outputs["held_s"].scalar.primitive.float_value > 0
    decks = list((tmp_path / "flyte").rglob("deck.html"))
    assert [deck.parts[-4] for deck in decks] == ["finish"]
    assert "<svg" in decks[0].read_text()
    rollout = literal_file(tmp_path, "rollout-000001")
    assert rollout == str(run / "steps" / "000001" / "trajectories.parquet")


def dynamic_job(root: Path) -> Any:
    """What the one dynamic node asked for."""
    from flyteidl.core import dynamic_job_pb2

    (path,) = root.rglob("futures.pb")
    return dynamic_job_pb2.DynamicJobSpec.FromString(path.read_bytes())


def job_of(root: Path, name: str) -> dict[str, Any]:
    """The RayJob of a task that a dynamic node asked for."""
    from google.protobuf.json_format import MessageToDict

    (task,) = [task for task in dynamic_job(root).tasks if task.id.name.endswith(f".{name}")]
    return MessageToDict(task.custom)


def literal_file(root: Path, node: str) -> str:
    from flyteidl.core import literals_pb2

    (path,) = (root / "flyte").rglob(f"{node}/0/out/outputs.pb")
    return literals_pb2.LiteralMap.FromString(path.read_bytes()).literals["file"].scalar.blob.uri


def test_a_wrong_configuration_fails_in_the_first_node_and_is_not_retried(
    package: Package, image: Path, tmp_path: Path
) -> None:
    propeller = Propeller(package, tmp_path / "flyte", image)
    with pytest.raises(
        NodeFailed, match=re.compile(r"USER.*trainer\.total_training_step\b.*total_training_steps", re.S)
    ):
        propeller.run(TRAIN, inputs(tmp_path, "trainer.total_training_step=1"))
    assert [attempt.task for attempt in propeller.attempts] == ["resolve_config"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_lost_cluster_is_tried_again_as_often_as_the_task_says(package: Package, image: Path, tmp_path: Path) -> None:
    """Nobody holds a cluster here. Flyte counts `retries` only for an error that says RECOVERABLE in error.pb."""
    resolved = resolve(
        {"defaults": ["scripted"]}, [f"trainer.default_local_dir={tmp_path / 'runs'}", "ray.up_timeout_s=0.5"]
    )
    propeller = Propeller(package, tmp_path / "flyte", image)
    with pytest.raises(
        NodeFailed, match=re.compile(r"RECOVERABLE USER:Recoverable.*DeadlineExceeded: .*hold_clu", re.S)
    ):
        propeller.task("tasks.stages.begin", literals(config=to_dict(resolved.config)))
    assert [attempt.number for attempt in propeller.attempts] == [0, 1, 2]
    assert all(attempt.exit_code == 0 for attempt in propeller.attempts)  # error.pb decides, not the exit code


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nodes_reach_the_held_cluster_through_ray_client(
    package: Package, image: Path, head: tuple[str, str], tmp_path: Path
) -> None:
    """As on a cluster, where a node's pod has no Ray of its own."""
    inside, outside = head
    propeller = Propeller(package, tmp_path / "flyte", image, {"RAY_ADDRESS": inside, "VERL_RAY_CLIENT": outside})
    propeller.run(
        TRAIN,
        inputs(
            tmp_path,
            "trainer.total_training_steps=2",
            "trainer.steps_per_node=1",
            "trainer.experiment_name=emulated-client",
        ),
    )
    run = tmp_path / "runs" / "emulated-client"
    assert json.loads((run / "summary.json").read_text())["steps"] == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_per_task_clusters_rebuild_everything_from_the_run_directory(
    package: Package, image: Path, tmp_path: Path
) -> None:
    """RAY_ADDRESS=local gives every RayJob an empty cluster that dies with it, as KubeRay does."""
    results = {}
    for mode in ("stages", "chunk"):
        propeller = Propeller(package, tmp_path / mode, image, {"RAY_ADDRESS": "local"})
        overrides = [
            "ray.mode=per_task",
            "trainer.total_training_steps=2",
            "trainer.save_freq=-1",  # step 1 leaves no checkpoint: step 2 replays its batch
            f"trainer.steps_per_node={1 if mode == 'stages' else 2}",
            f"trainer.experiment_name=emulated-{mode}",
        ]
        outputs = propeller.run(TRAIN, inputs(tmp_path, *overrides))
        assert outputs["held_s"].scalar.primitive.float_value == 0
        assert "cluster" not in by_node(propeller)
        results[mode] = json.loads((tmp_path / "runs" / f"emulated-{mode}" / "summary.json").read_text())
    assert results["stages"]["final_weights_sha256"] == results["chunk"]["final_weights_sha256"]

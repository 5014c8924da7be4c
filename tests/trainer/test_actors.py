"""What a run takes of the cluster: one reservation found again by every process, and nothing left when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from tests.trainer.conftest import MakeConfig
from verl_core.config import resolve
from verl_core.errors import ConfigError, ResourceError
from verl_core.trainer.actors import launch_actors, weights_folder
from verl_core.trainer.placement import group_name, place
from verl_core.trainer.ray_session import namespace_of
from verl_core.trainer.reservation import release, reserve

pytestmark = pytest.mark.usefixtures("ray_cluster")


def standing(name: str) -> list[str]:
    """Ids of the placement groups of this name."""
    return [key for key, row in placement_group_table().items() if row["name"] == name and row["state"] != "REMOVED"]


def named(namespace: str) -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == namespace]


def test_a_reservation_is_found_again_and_one_of_another_shape_is_replaced() -> None:
    name, three = "devices-test-again", [{"CPU": 1.0}] * 3  # of the four cores: a second one would never be granted
    try:
        first = reserve(name, three, one_node=True, timeout_s=60)
        assert reserve(name, three, one_node=True, timeout_s=60) == first
        assert standing(name) == [first.id.hex()]
        other = reserve(name, [{"CPU": 2.0}, {"CPU": 2.0}], one_node=True, timeout_s=60)
        assert standing(name) == [other.id.hex()] != [first.id.hex()]
    finally:
        release(name)
    assert standing(name) == []


def test_a_reservation_that_cannot_be_had_leaves_nothing() -> None:
    with pytest.raises(ResourceError, match=r"could not reserve .*'CPU': 5.* on one node within 0.5 s"):
        reserve("devices-test-large", [{"CPU": 5.0}], one_node=True, timeout_s=0.5)
    assert standing("devices-test-large") == []


def test_ranks_and_servers_on_a_cpu_are_pinned_to_one_node(make_config: MakeConfig) -> None:
    config = make_config("pinned", "actor_rollout_ref.rollout.num_servers=2")
    first, second = place(config), place(config)
    try:
        assert first.group == second.group
        (row,) = [row for row in placement_group_table().values() if row["name"] == group_name(namespace_of(config))]
        assert set(row["bundles_to_node_id"].values()) == {ray.get_runtime_context().get_node_id()}
        for options in (first.policy(0), first.server(1), first.host):
            assert options["scheduling_strategy"].placement_group == first.group
            assert (options["num_cpus"], options["num_gpus"]) == (0, 0)
        assert (first.device, first.num_servers) == ("cpu", 2)
    finally:
        release(group_name(namespace_of(config)))


def test_devices_must_be_on_one_node_and_servers_have_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": alive, "NodeID": str(i), "Resources": {"GPU": 2.0}} for i, alive in enumerate((True, True, False))
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    asked: list[Any] = []

    def reserved(name: str, bundles: Any, one_node: bool, timeout_s: float) -> None:
        asked.append((len(bundles), one_node))

    monkeypatch.setattr("verl_core.trainer.placement.reserve", reserved)

    def placed(*overrides: str) -> Any:
        return place(resolve("configs/scripted.yaml", ["trainer.device=auto", *overrides]).config)

    with pytest.raises(ResourceError, match="asks for 4 cuda devices of one node, the largest has 2"):
        placed("trainer.n_gpus_per_node=4")
    with pytest.raises(ResourceError, match="asks for 8 cuda devices, the cluster has 4"):
        placed("trainer.n_gpus_per_node=4", "trainer.nnodes=2")
    two = ("trainer.n_gpus_per_node=2", "trainer.nnodes=2")
    with pytest.raises(ConfigError, match="tensor_model_parallel_size: 2 is not supported"):
        placed(*two, "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert asked == []
    placement = placed(*two)
    assert (placement.device, placement.num_servers) == ("cuda", 4)
    placed("trainer.n_gpus_per_node=2")
    assert asked == [(4, False), (2, True)]


def test_two_directories_are_two_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repo_root: Path) -> None:
    def config(root: str) -> Any:
        return resolve(str(repo_root / "configs/scripted.yaml"), [f"trainer.default_local_dir={root}"]).config

    monkeypatch.chdir(tmp_path)
    same = [config("runs"), config("runs/"), config(f"{tmp_path}/runs")]
    others = [config("other"), config("s3://bucket/runs"), config("s3://bucket2/runs")]
    assert len({namespace_of(one) for one in same}) == 1
    assert len({namespace_of(one) for one in (*same, *others)}) == 4
    assert len({weights_folder(one) for one in (*same, *others)}) == 4
    assert weights_folder(same[0]).startswith("/dev/shm/")


def test_a_part_that_cannot_start_takes_the_others_with_it(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("broken-start", "trainer.use_v1=false")
    config.actor_rollout_ref.model.path = str(tmp_path / "nothing")
    with pytest.raises(Exception, match="nothing"):
        launch_actors(config, 4, [], weights_folder(config))
    assert named(namespace_of(config)) == []
    assert standing(group_name(namespace_of(config))) == []


def test_nothing_of_a_run_is_left_when_its_actors_end(make_config: MakeConfig) -> None:
    config = make_config("ended", "trainer.use_v1=false")
    folder = Path(weights_folder(config))
    actors = launch_actors(config, 4, [], str(folder))
    try:
        actors.servers.update_weights(actors.policy.publish(1))
        host, port = actors.policy.meeting_point()
        assert (host, 0 < port < 65536) == ("127.0.0.1", True)
        assert (folder / "current").exists()
        assert standing(group_name(namespace_of(config)))
        ray.kill(ray.get_actor("policy-0", namespace_of(config)))  # the folder does not depend on rank 0
    finally:
        actors.leave()
        actors.shutdown()
    assert not folder.exists()
    assert named(namespace_of(config)) == []
    assert standing(group_name(namespace_of(config))) == []

"""Who gets which GPU, with Ray's nodes and reservations replaced by lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from verl_core.config import RunConfig
from verl_core.errors import ResourceError
from verl_core.trainer import placement
from verl_core.trainer.placement import Placement, place, place_teachers


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bundles by the name of their group; the cluster is one node of four GPUs."""
    made: dict[str, int] = {}

    def reserve(name: str, bundles: Sequence[Mapping[str, float]], **_: object) -> Any:
        made[name.rpartition("-")[2]] = len(bundles)
        return SimpleNamespace(bundle_count=len(bundles))

    monkeypatch.setattr(placement, "reserve", reserve)
    monkeypatch.setattr(placement, "_nodes", lambda: [{"Resources": {"GPU": 4.0, "CPU": 16.0}}])
    return made


def on_gpus(ranks: int, teachers: int = 0) -> RunConfig:
    config = RunConfig()
    config.trainer.device, config.trainer.n_gpus_per_node = "cuda", ranks
    config.distillation.enabled = teachers > 0
    config.distillation.teacher_models = {"main": {"model_path": "/teacher", "num_replicas": teachers}}
    return config


def seat(options: Mapping[str, Any]) -> tuple[int, float]:
    """(bundle, share of its GPU)."""
    return options["scheduling_strategy"].placement_group_bundle_index, options["num_gpus"]


def test_teachers_have_devices_behind_those_of_the_run(reserved: dict[str, int]) -> None:
    config = on_gpus(ranks=2, teachers=2)
    options = place_teachers(config, place(config))
    assert reserved["teachers"] == 2
    assert [seat(options(index)) for index in range(2)] == [(0, 1.0), (1, 1.0)]
    more = on_gpus(ranks=2, teachers=3)
    with pytest.raises(ResourceError, match="3 servers need a device each beside the 2 of the run's other parts; the"):
        place_teachers(more, place(more))


def test_a_rollout_in_another_cluster_takes_nothing_from_teachers(reserved: dict[str, int]) -> None:
    config = on_gpus(ranks=2, teachers=2)
    config.trainer.v1.trainer_mode, config.ray.mode = "separate_async", "split"
    config.actor_rollout_ref.rollout.nnodes, config.actor_rollout_ref.rollout.n_gpus_per_node = 1, 4
    place_teachers(config, place(config, "trainer"))
    assert reserved == {"trainer": 2, "teachers": 2}


def test_a_reward_model_has_devices_of_its_own_or_a_share(reserved: dict[str, int]) -> None:
    def placed(own: bool) -> Placement:
        config = on_gpus(ranks=2)
        model = config.reward.reward_model
        model.enable, model.enable_resource_pool, model.nnodes = True, own, int(own)
        return place(config)

    own = placed(own=True)
    assert own.num_judges == 2
    assert [seat(own.judge(index)) for index in range(2)] == [(2, 1.0), (3, 1.0)]
    shared = placed(own=False)
    assert shared.num_judges == 2
    beside = [seat(part(1)) for part in (shared.policy, shared.server, shared.judge)]
    assert {bundle for bundle, _ in beside} == {1}
    assert sum(share for _, share in beside) == pytest.approx(1.0)

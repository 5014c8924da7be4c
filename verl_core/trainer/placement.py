"""Which devices an actor gets. Invariant: too few devices is an error before any actor is asked for, never a silent
queue; and the ranks and servers of a run on one node sit on one node, as shared memory and their meeting point demand.

On a CPU every actor asks for 0 CPUs: nothing can queue, and the operating system shares the cores. On GPUs policy
ranks and servers share the devices, one bundle of the run's placement group each; each takes a fraction of it. In
separate_async the servers have bundles of their own, behind those of the ranks. An actor sees the one device of its
bundle, so a server has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from verl_core.config.schema import RunConfig
from verl_core.config.teachers import teacher_devices
from verl_core.errors import ConfigError, ResourceError
from verl_core.trainer.ray_session import namespace_of
from verl_core.trainer.reservation import reserve

ActorOptions = Callable[[int], dict[str, Any]]
Part = Literal["all", "trainer", "rollout", "teachers"]  # of a run that is in this Ray cluster
PARTS: tuple[Part, ...] = ("all", "trainer", "rollout", "teachers")
# Of one device; a critic takes half of the policy's share. Ray only counts; memory is shared by sleeping and waking.
_POLICY_SHARE, _SERVER_SHARE = 0.6, 0.4
_JUDGE_SHARE = 0.1  # of a reward model beside them, taken off the policy's
_PIN = 0.001  # of the resource that every Ray node has under its own address: takes nothing, names the node


def device_of(config: RunConfig) -> str:
    """`cpu` or `cuda`: what trainer.device means on the connected Ray cluster. Everybody else is told."""
    if config.trainer.device != "auto":
        return config.trainer.device
    return "cuda" if any(_amount(node, "GPU") for node in _nodes()) else "cpu"


@dataclass(frozen=True)
class Placement:
    """Ray options for the actors of one run.

    Attributes:
        device: `cpu` or `cuda`.
        group: Ray's placement group that all of them are in; `group_name` finds it again.
        policy: options of policy rank i.
        critic: options of critic rank i: beside policy rank i, in its bundle.
        server: options of inference server i.
        host: options of a task on the host of rank 0.
        num_servers: how many servers to start.
        lent: options of server i on the trainer's devices, and how many there are; 0 unless they are lent.
        judge: options of worker i of the reward model, and how many there are; 0 unless there is one.
    """

    device: str
    group: Any
    policy: ActorOptions
    server: ActorOptions
    host: dict[str, Any]
    num_servers: int
    lent: ActorOptions
    critic: ActorOptions
    num_lent: int = 0
    judge: ActorOptions = lambda index: {}
    num_judges: int = 0


def group_name(namespace: str, part: Part = "all") -> str:
    """Of the run's placement group."""
    return f"devices-{namespace}" if part == "all" else f"devices-{namespace}-{part}"


def place(config: RunConfig, part: Part = "all") -> Placement:
    """Check that the devices exist, reserve them or find them reserved, and say who sits where.

    Args:
        part: which part of the run this Ray cluster is for; what belongs to another part is not placed.

    Raises:
        ConfigError: servers of several devices.
        ResourceError: fewer devices than trainer.nnodes x trainer.n_gpus_per_node, or servers that do not divide them.
    """
    device, ranks = device_of(config), 0 if part == "rollout" else config.world_size
    alone = 0 if part == "trainer" else rollout_devices(config)
    own = 0 if part == "rollout" else config.reward_devices
    judges = 0 if part == "rollout" else own or (config.world_size if config.colocates_reward_model else 0)
    _require(config, ranks, alone if device == "cuda" else 0, device)
    _require_judges(config, ranks, alone, own if device == "cuda" else 0)
    servers = _servers(config, ranks, device)
    if device == "cuda" and _lent(config):
        raise ConfigError(
            "trainer.v1.separate_async.hybrid_rollout.enable_switch: lending GPUs needs two ways for weights at once, "
            "inside a device and between devices, which is not supported yet. Set it to false"
        )
    name, limit = group_name(namespace_of(config), part), config.trainer.init_timeout_s
    if device == "cpu":
        group = reserve(name, [_pin()], one_node=True, timeout_s=limit)
        here = _at(group, 0, 0.0)

        def anywhere(_: int) -> dict[str, Any]:
            return here

        return Placement(
            device, group, anywhere, anywhere, here, servers, anywhere, anywhere, _lent(config), anywhere, judges
        )
    bundles = [{"GPU": 1.0, "CPU": 1.0}] * (ranks + alone + own)
    group = reserve(name, bundles, one_node=config.trainer.nnodes == 1 and not alone, timeout_s=limit)
    apart = rollout_devices(config) > 0
    first, policy_share, server_share = (ranks, 1.0, 1.0) if apart else (0, _POLICY_SHARE, _SERVER_SHARE)
    policy_share -= _JUDGE_SHARE if config.colocates_reward_model else 0.0
    trained_share = policy_share / 2 if config.needs_critic else policy_share
    judge_at, judge_share = (ranks + alone, 1.0) if own else (0, _JUDGE_SHARE)
    return Placement(
        device,
        group,
        lambda rank: _at(group, rank, trained_share),
        lambda index: _at(group, first + index, server_share),
        _at(group, 0, 0.0),
        servers,
        lambda index: _at(group, index, _SERVER_SHARE),
        lambda rank: _at(group, rank, trained_share),
        judge=lambda index: _at(group, judge_at + index, judge_share),
        num_judges=judges,
    )


def place_teachers(config: RunConfig, placement: Placement) -> ActorOptions:
    """Ray options of teacher server i: on a CPU beside everything else, on GPUs a device of its own.

    Raises:
        ResourceError: the cluster has no devices left for them.
    """
    need = teacher_devices(config)
    if placement.device == "cpu" or not need:
        return lambda _: placement.host
    total, others = sum(_amount(node, "GPU") for node in _nodes()), int(placement.group.bundle_count)
    if need + others > total:
        raise ResourceError(
            f"distillation.teacher_models: {need} servers need a device each beside the {others} of the run's "
            f"other parts; the cluster has {total}. Lower num_replicas of a teacher, or run where there are more"
        )
    name = group_name(namespace_of(config), "teachers")
    bundles = [{"GPU": 1.0, "CPU": 1.0}] * need
    group = reserve(name, bundles, one_node=False, timeout_s=config.trainer.init_timeout_s)
    return lambda index: _at(group, index, 1.0)


def _lent(config: RunConfig) -> int:
    """Servers on the trainer's devices in separate_async: one per device when they are lent."""
    v1 = config.trainer.v1
    lends = v1.trainer_mode == "separate_async" and v1.separate_async.hybrid_rollout.enable_switch
    return config.world_size if lends else 0


def rollout_devices(config: RunConfig) -> int:
    """GPUs that only serve: rollout.nnodes x rollout.n_gpus_per_node in separate_async, else none."""
    return config.num_devices - config.world_size


def _require(config: RunConfig, ranks: int, alone: int, device: str) -> None:
    """Raise ResourceError unless there are as many devices as ranks, on one node for a run on one node, and as those
    that only serve."""
    have = [_amount(node, "GPU" if device == "cuda" else "CPU") for node in _nodes()]
    if alone and ranks + alone > sum(have):
        raise ResourceError(
            f"the trainer's {ranks} devices and the rollout's {alone} (actor_rollout_ref.rollout.nnodes x "
            f"n_gpus_per_node) make {ranks + alone}, the cluster has {sum(have)}. Lower one of them."
        )
    if ranks > sum(have):
        raise ResourceError(
            f"trainer.nnodes x trainer.n_gpus_per_node asks for {ranks} {device} devices, the cluster has {sum(have)}. "
            f"Lower trainer.n_gpus_per_node, or run where there are {ranks}."
        )
    if config.trainer.nnodes == 1 and ranks > max(have):
        raise ResourceError(
            f"trainer.n_gpus_per_node asks for {ranks} {device} devices of one node, the largest has {max(have)}. "
            "Lower it, or raise trainer.nnodes."
        )


def _require_judges(config: RunConfig, ranks: int, alone: int, own: int) -> None:
    """Raise ResourceError unless there are devices for the reward model beside those of trainer and rollout; on
    the same node where these must be on one."""
    if not own:
        return
    have = [_amount(node, "GPU") for node in _nodes()]
    one_node = config.trainer.nnodes == 1 and not alone
    if ranks + alone + own > (max(have) if one_node else sum(have)):
        raise ResourceError(
            f"the reward model's {own} devices (reward.reward_model.nnodes x n_gpus_per_node) and the {ranks + alone} "
            f"of trainer and rollout make {ranks + alone + own}, the nodes have {have}"
            f"{' and all must be on one' if one_node else ''}. Lower one of them, or let the reward model share the "
            "trainer's with reward.reward_model.enable_resource_pool=false"
        )


def _servers(config: RunConfig, ranks: int, device: str) -> int:
    rollout = config.actor_rollout_ref.rollout
    if rollout.tensor_model_parallel_size > 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size: {rollout.tensor_model_parallel_size} is not "
            "supported: a server runs on one device. Set it to 1; there is one server per device then"
        )
    if device == "cpu":
        return rollout.num_servers or 1
    if config.trainer.v1.trainer_mode == "separate_async" and not rollout_devices(config):
        raise ConfigError("actor_rollout_ref.rollout.nnodes: separate_async needs devices for the rollout alone")
    devices = rollout_devices(config) or ranks
    servers = rollout.num_servers or devices
    if servers > devices:
        whose = "there are" if rollout_devices(config) else "share the trainer's"
        raise ResourceError(
            f"actor_rollout_ref.rollout.num_servers: {servers} servers need a device each, and {whose} {devices}. "
            "Lower it, or leave it null."
        )
    return servers


def _at(group: Any, bundle: int, share: float) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return {"num_cpus": 0, "num_gpus": share, "scheduling_strategy": strategy}


def _pin() -> dict[str, float]:
    """The bundle that lies on the node with the most cores, whatever is taken there."""
    node = max(_nodes(), key=lambda one: (_amount(one, "CPU"), str(one["NodeID"])))
    return {f"node:{node['NodeManagerAddress']}": _PIN}


def _nodes() -> list[dict[str, Any]]:
    """Ray's living nodes."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _amount(node: dict[str, Any], resource: str) -> int:
    return int(node["Resources"].get(resource, 0))

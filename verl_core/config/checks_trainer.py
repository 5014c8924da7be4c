"""Checks of `trainer.*` and `ray.*`: mode, length, resume, loggers, the run directory, the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator

from verl_core.config import names
from verl_core.config.checks import Facts, check, no_effect
from verl_core.config.checks_algorithm import unknown_name
from verl_core.config.schema import GroupConfig
from verl_core.config.teachers import teacher_devices

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?")
LEASE_GRACE_S = 60.0  # a time-out has to reach the buffer before the lease does


@check
def mode_is_known(facts: Facts) -> Iterator[str]:
    """The trainer mode exists; the legacy path has none."""
    mode = facts.config.trainer.v1.trainer_mode
    yield from unknown_name("trainer.v1.trainer_mode", mode, names.TRAINER_MODES, names.VERL_TRAINER_MODES)
    if not facts.config.trainer.use_v1:
        keys = [
            "trainer.v1.trainer_mode",
            "trainer.v1.buffer.call_timeout_s",
            "trainer.v1.buffer.num_storage_units",
        ]
        yield from no_effect(facts, keys, "with trainer.use_v1=false")


@check
def loggers_are_known(facts: Facts) -> Iterator[str]:
    """Every logger exists and is named once."""
    chosen = facts.config.trainer.logger
    for name in chosen:
        yield from unknown_name("trainer.logger", name, names.LOGGERS, names.VERL_LOGGERS)
    if len(set(chosen)) < len(chosen):
        yield f"trainer.logger: a logger is named twice in {chosen}"


@check
def length_is_given_once(facts: Facts) -> Iterator[str]:
    """Steps decide when given."""
    if facts.config.trainer.total_training_steps is not None:
        yield from no_effect(facts, ["trainer.total_epochs"], "when trainer.total_training_steps is given")


@check
def resume_has_a_path(facts: Facts) -> Iterator[str]:
    """A path is needed, and read, by one resume mode."""
    trainer = facts.config.trainer
    if trainer.resume_mode == "resume_path" and not trainer.resume_from_path:
        yield "trainer.resume_from_path: trainer.resume_mode=resume_path needs the checkpoint folder to start from"
    if trainer.resume_mode != "resume_path":
        because = f"with trainer.resume_mode={trainer.resume_mode}"
        yield from no_effect(facts, ["trainer.resume_from_path"], because)


@check
def run_has_a_folder(facts: Facts) -> Iterator[str]:
    """The run's folder is <root>/<experiment_name>, so both make a path."""
    trainer = facts.config.trainer
    if not trainer.default_local_dir:
        yield "trainer.default_local_dir: must not be empty; it is the root of the run directories"
    if not _FOLDER_NAME.fullmatch(trainer.experiment_name):
        yield (
            f"trainer.experiment_name: names the run's folder: letters, digits, dot, dash and underscore, starting with"
            f" a letter or digit; got {trainer.experiment_name!r}"
        )


@check
def stalls_outlast_leases(facts: Facts) -> Iterator[str]:
    """A group must have the chance to be issued again before the buffer gives up."""
    buffer = facts.config.trainer.v1.buffer
    if buffer.stall_timeout_s < buffer.lease_s:
        yield (
            f"trainer.v1.buffer.stall_timeout_s: {buffer.stall_timeout_s:g} s is less than trainer.v1.buffer.lease_s="
            f"{buffer.lease_s:g}; the run would give up before a lost group could be issued again"
        )


@check
def leases_outlast_requests(facts: Facts) -> Iterator[str]:
    """A session that runs out of time ends with its own account; a lease only knows that nothing came."""
    buffer, request = facts.config.trainer.v1.buffer, facts.config.actor_rollout_ref.rollout.request_timeout_s
    tools = facts.config.actor_rollout_ref.rollout.multi_turn.tools_limit_s
    and_tools = f" + rollout.multi_turn.max_assistant_turns x tool_timeout_s={tools:g}" if tools else ""
    if buffer.lease_s <= request + tools + LEASE_GRACE_S:
        yield (
            f"trainer.v1.buffer.lease_s: {buffer.lease_s:g} s must exceed actor_rollout_ref.rollout.request_timeout_s="
            f"{request:g}{and_tools} by more than {LEASE_GRACE_S:g} s; a slow group would be issued again before its"
            " own time-out says what it waited for"
        )


@check
def the_cluster_has_the_devices(facts: Facts) -> Iterator[str]:
    """Pods that are asked for hold a GPU per rank. On a Ray of one's own, `ray.*` is not set and says nothing."""
    trainer, ray = facts.config.trainer, facts.config.ray
    if trainer.device != "cuda" or not facts.given_below("ray"):
        return
    ranks, whose = facts.config.world_size, "trainer.nnodes x trainer.n_gpus_per_node"
    alone, alone_is = facts.config.num_devices - ranks, "actor_rollout_ref.rollout.nnodes x n_gpus_per_node"
    if teachers := teacher_devices(facts.config):
        ranks, whose = ranks + teachers, f"{whose} + one per server of a teacher"
    if judges := facts.config.reward_devices:  # beside the trainer, in whichever cluster that is
        ranks, whose = ranks + judges, f"{whose} + reward.reward_model.nnodes x n_gpus_per_node"
    if ray.mode == "split":
        yield from _too_few("worker", ray.head, ray.worker, ranks, whose)
        yield from _too_few("rollout", ray.head, ray.rollout, alone, alone_is)
    else:
        yield from _too_few("worker", ray.head, ray.worker, ranks + alone, f"{whose} + {alone_is}" if alone else whose)


def _too_few(name: str, head: GroupConfig, pods: GroupConfig, need: int, why: str) -> Iterator[str]:
    have = head.gpu * head.replicas + pods.gpu * pods.replicas
    if have < need:
        yield (
            f"ray.{name}.gpu: ray.head.gpu={head.gpu} and {pods.gpu} in each of ray.{name}.replicas={pods.replicas} "
            f"make {have} GPUs; {why} needs {need}. Raise them"
        )


@check
def quantities_are_kubernetes(facts: Facts) -> Iterator[str]:
    """Pod resources as Kubernetes writes them."""
    for group in ("head", "worker", "rollout"):
        for name in ("cpu", "mem"):
            key = f"ray.{group}.{name}"
            if not _QUANTITY.fullmatch(facts.values[key]):
                yield f"{key}: must be a Kubernetes quantity such as '4', '500m' or '16Gi', got {facts.values[key]!r}"

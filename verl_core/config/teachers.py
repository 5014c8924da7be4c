"""The entries of `distillation.teacher_models`, read. Invariant: an entry is as strict as a section of the schema; what
it leaves open is the rollout's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from verl_core.config.schema import RolloutConfig, RunConfig, TeacherModelConfig, WarmStartConfig
from verl_core.config.typed import TypedReader

SECTION = "distillation.teacher_models"


@dataclass(frozen=True)
class Teacher:
    """One teacher, settled.

    Attributes:
        name: its key in `distillation.teacher_models`.
        source: data source that it teaches; None = all that have no other.
        path: model folder; empty while it is still to be made.
        making: how it is made; None for a folder.
        replicas: servers.
        engine: `vllm` or `scripted`.
        max_logprobs: candidates per token that its servers give at most.
    """

    name: str
    source: str | None
    path: str
    making: WarmStartConfig | None
    replicas: int
    engine: str
    dtype: str
    gpu_memory_utilization: float
    max_num_seqs: int
    max_logprobs: int


def teachers_of(config: RunConfig) -> list[Teacher]:
    """In the order of their names; none without distillation.enabled. Entries that cannot be read are left out: the
    checks have told them."""
    if not config.distillation.enabled:
        return []
    read = [read_teacher(config, name, entry) for name, entry in sorted(config.distillation.teacher_models.items())]
    return [teacher for teacher, problems in read if teacher is not None and not problems]


def read_teacher(config: RunConfig, name: str, entry: Any) -> tuple[Teacher | None, list[str]]:
    """(the teacher, what is wrong with its entry)."""
    if not isinstance(entry, Mapping):
        return None, [f"{SECTION}.{name}: expected a section with settings of its own, got {entry!r}"]
    reader = TypedReader({})
    given: TeacherModelConfig = reader.section(TeacherModelConfig, entry, f"{SECTION}.{name}.")
    making = None
    if given.warm_start:
        if "enable" in given.warm_start:
            reader.problems.append(f"{SECTION}.{name}.warm_start.enable: has no effect, the section says it; delete it")
        whole = {**asdict(config.warm_start), **given.warm_start, "enable": True}
        making = reader.section(WarmStartConfig, whole, f"{SECTION}.{name}.warm_start.")
    return _settled(config, name, given, making), reader.problems


def _settled(config: RunConfig, name: str, given: TeacherModelConfig, making: WarmStartConfig | None) -> Teacher:
    rollout: RolloutConfig = config.actor_rollout_ref.rollout
    own, loss = given.inference, config.distillation.distillation_loss
    needed = loss.topk if loss.reads_topk else 0
    return Teacher(
        name=name,
        source=given.key,
        path=given.model_path,
        making=making,
        replicas=given.num_replicas,
        engine=rollout.name if own.name is None else own.name,
        dtype=rollout.dtype if own.dtype is None else own.dtype,
        gpu_memory_utilization=(
            rollout.gpu_memory_utilization if own.gpu_memory_utilization is None else own.gpu_memory_utilization
        ),
        max_num_seqs=rollout.max_num_seqs if own.max_num_seqs is None else own.max_num_seqs,
        max_logprobs=needed if own.max_logprobs is None else own.max_logprobs,
    )


def teacher_devices(config: RunConfig) -> int:
    """Devices of the teachers alone: one per server."""
    return sum(teacher.replicas for teacher in teachers_of(config))


def taught_by(teachers: list[Teacher], source: str) -> Teacher | None:
    """Who teaches this data source: its own teacher, else the one of all others, else nobody."""
    own = [teacher for teacher in teachers if teacher.source == source]
    return next(iter([*own, *(teacher for teacher in teachers if teacher.source is None)]), None)

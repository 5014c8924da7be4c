"""Which sender a run uses. Invariant: a backend that cannot work on the device is refused before training starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict, cast, get_args

from verl_core.config.schema import RunConfig
from verl_core.errors import ConfigError, WeightError
from verl_core.weights.adapter import served_adapter
from verl_core.weights.device import DeviceGroup, DeviceSender
from verl_core.weights.interface import Backend, TensorSpec, WeightSender
from verl_core.weights.shm import ShmSender
from verl_core.weights.store import StoreSender


class SenderOptions(TypedDict):
    """What any of the senders may need."""

    bucket_bytes: int
    folder: str | Path | None
    group: DeviceGroup | None
    specs: Sequence[TensorSpec]


def run_backend(config: RunConfig, device: str) -> Backend:
    """The run's backend; see `backend_of`."""
    if is_stored(config):
        return "store"
    apart = config.trainer.v1.trainer_mode == "separate_async"
    asked = config.actor_rollout_ref.rollout.update_weights_backend
    if asked == "auto" and served_adapter(config.actor_rollout_ref.model) is not None:
        return "shm"  # engines know how to replace whole weights between devices, not an adapter; it is small
    return backend_of(asked, device, apart)


def is_stored(config: RunConfig) -> bool:
    """Whether weights go through the run directory: when asked for, between two Ray clusters, and for an adapter whose
    trainers and servers may sit on several hosts."""
    asked = config.actor_rollout_ref.rollout.update_weights_backend
    hosts = config.trainer.nnodes + config.actor_rollout_ref.rollout.nnodes  # servers of their own: see placement
    if asked == "auto" and hosts > 1 and served_adapter(config.actor_rollout_ref.model) is not None:
        return True  # an adapter goes through memory or storage, and there is no memory that all hosts share
    return asked == "store" or (asked == "auto" and config.ray.mode == "split")


def backend_of(setting: Literal["auto", "shm", "ipc", "nccl", "store"], device: str, apart: bool = False) -> Backend:
    """`actor_rollout_ref.rollout.update_weights_backend` resolved: auto is shm on a CPU and ipc on GPUs of one cluster.

    Args:
        apart: servers have devices of their own; auto is nccl between GPUs then.

    Raises:
        ConfigError: ipc or nccl on a CPU.
    """
    if setting == "auto":
        between = "nccl" if apart else "ipc"
        return cast(Backend, between) if device == "cuda" else "shm"
    if setting in ("ipc", "nccl") and device != "cuda":
        raise ConfigError(
            f"actor_rollout_ref.rollout.update_weights_backend={setting} moves weights between GPUs, "
            f"but trainer.device is {device}: use shm or auto"
        )
    return setting


def sender_for(
    backend: Backend,
    bucket_bytes: int,
    folder: str | Path | None = None,
    group: DeviceGroup | None = None,
    specs: Sequence[TensorSpec] = (),
) -> WeightSender:
    """The trainer's end.

    Args:
        bucket_bytes: rollout.update_weights_bucket_megabytes x 2**20.
        folder: shm and store only: where to publish.
        group, specs: ipc and nccl only: who takes part, and what will be sent (`layout_of(state).tensors`).
    """
    if backend not in SENDERS:
        raise WeightError(f"unknown weight backend {backend!r}; known: {', '.join(get_args(Backend))}")
    return SENDERS[backend](SenderOptions(bucket_bytes=bucket_bytes, folder=folder, group=group, specs=specs))


def _shm(options: SenderOptions) -> WeightSender:
    if options["folder"] is None:
        raise WeightError("the shm backend needs the folder to publish in")
    return ShmSender(options["folder"], options["bucket_bytes"])


def _store(options: SenderOptions) -> WeightSender:
    if options["folder"] is None:
        raise WeightError("the store backend needs the folder or URL to publish in")
    return StoreSender(options["folder"], options["bucket_bytes"])


def _device(options: SenderOptions) -> WeightSender:
    if options["group"] is None:
        raise WeightError("device backends need the group of ranks and servers")
    return cast(WeightSender, DeviceSender(options["group"], options["specs"], options["bucket_bytes"]))


SENDERS: dict[Backend, Callable[[SenderOptions], WeightSender]] = {
    "shm": _shm,
    "store": _store,
    "ipc": _device,
    "nccl": _device,
}

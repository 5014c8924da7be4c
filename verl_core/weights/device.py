"""Weights from device to device with vLLM's own transfer engines: `nccl` (other GPUs) and `ipc` (the same GPUs).

Invariant: a publication ends with every server at the new version, or with an error. Names, dtypes and shapes are
checked before a tensor is sent, because a transfer that breaks half way costs the servers their engines.

Needs GPUs. The transfer itself has not been run where this was written. What needs no GPU (declaring, order, ranks in
the group, the conversation with the servers, refusals) is tested with servers that only write down what they are told.
Nothing lasting is published: a server that restarts has no way to the weights but the next publication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from verl_core.deadline import Deadline
from verl_core.errors import WeightError
from verl_core.weights.interface import TensorSpec, WeightManifest
from verl_core.weights.manifest import DTYPES, nbytes

DeviceBackend = Literal["nccl", "ipc"]


class TransferServer(Protocol):
    """The control side of one server, called with plain values; blocks until the server has done it."""

    def call(self, method: str, *arguments: Any) -> None:
        """Run one of init_weight_transfer, start_weight_update, receive_weights, finish_weight_update."""


@dataclass(frozen=True)
class DeviceGroup:
    """Who takes part in the transfers.

    Attributes:
        backend: nccl or ipc.
        rank: of this trainer process; rank 0 talks to the servers, the others only take part in gathering.
        servers: all of them (rank 0; may be empty elsewhere).
        workers_per_server: devices of one server (tensor_model_parallel_size).
        address, port: nccl only: where rank 0 listens for the rendezvous.
    """

    backend: DeviceBackend
    rank: int
    servers: Sequence[TransferServer]
    workers_per_server: int = 1
    address: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        if self.backend == "nccl" and not (self.address and 0 < self.port < 65536):
            raise WeightError(f"nccl needs an address and a port to meet at, got {self.address!r}:{self.port}")
        if self.rank == 0 and not self.servers:
            raise WeightError("there are no servers to send weights to")

    @property
    def world_size(self) -> int:
        """Members of the nccl group: the sending rank and every device of every server."""
        return 1 + len(self.servers) * self.workers_per_server


class ServerConversation:
    """vLLM's `VLLMWeightSyncClient` over our servers: the four calls, to all servers at once.

    Each server gets its own place in the nccl group; vLLM's stock client tells all of them the same.
    """

    def __init__(self, group: DeviceGroup, timeout_s: float) -> None:
        self._group, self._timeout_s, self.version = group, timeout_s, -1

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Rendezvous; `rank_offset` becomes the server's own."""
        infos = []
        for index in range(len(self._group.servers)):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] = 1 + index * self._group.workers_per_server
            infos.append((info,))
        self._all("init_weight_transfer", infos)

    def start_weight_update(self) -> None:
        """Open the update on every server."""
        self._all("start_weight_update", [()] * len(self._group.servers))

    def update_weights(self, update_info: Any) -> None:
        """Every server receives; returns when all have."""
        self._all("receive_weights", [(update_info,)] * len(self._group.servers))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close the update; servers drop their caches and take the version being published."""
        self._all("finish_weight_update", [(self.version,)] * len(self._group.servers))

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """The call on all servers, in parallel; the first error is raised. A server that never answers ends in
        DeadlineExceeded; its thread is left behind, as nothing can interrupt a stuck collective."""
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

        deadline = Deadline(f"{method} of {len(arguments)} servers", self._timeout_s)
        pool = ThreadPoolExecutor(max_workers=len(arguments), thread_name_prefix=method)
        try:
            pairs = zip(self._group.servers, arguments, strict=True)
            futures = [pool.submit(server.call, method, *given) for server, given in pairs]
            done, late = wait(futures, timeout=deadline.left, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if late:
                raise deadline.expired()
        finally:
            pool.shutdown(wait=False)


class DeclaredSource:
    """vLLM's `WeightSource`: what will come (from the specs) and the tensors themselves (once per publication)."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        if not specs:
            raise WeightError("device transports need the list of tensors before the first publication")
        self.specs = tuple(specs)
        self._named: Iterator[tuple[str, torch.Tensor]] = iter(())

    def offer(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """The tensors of the next pass."""
        self._named = iter(named)

    def metadata(self) -> list[Any]:
        """vLLM's ParamMeta of every tensor, in order."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(spec.name, DTYPES[spec.dtype], spec.shape) for spec in self.specs]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The offered tensors, each checked against the declaration. Raises WeightError at the first difference."""
        count = 0
        for name, tensor in self._named:
            if count == len(self.specs):
                raise WeightError(f"{name} was not declared: {len(self.specs)} tensors were")
            spec = self.specs[count]
            found = (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            if found != (spec.name, spec.dtype, spec.shape):
                raise WeightError(f"tensor {count} is {found}, declared was {(spec.name, spec.dtype, spec.shape)}")
            count += 1
            yield name, tensor
        if count != len(self.specs):
            raise WeightError(
                f"{count} tensors came, {len(self.specs)} were declared; first missing: {self.specs[count].name}"
            )


Connect = Callable[[DeviceGroup, ServerConversation, DeclaredSource, int], Any]


class DeviceSender:
    """WeightSender over nccl or ipc. Built on every trainer rank with the same specs; `publish` is collective.

    Args:
        group: who takes part.
        specs: every tensor in sending order (`layout_of(...)`; full shapes, also under FSDP).
        bucket_bytes: size of the packed pieces; for ipc no tensor may be larger.
        timeout_s: budget of each call to the servers.
        connect: opens vLLM's trainer engine; replaceable for tests.
    """

    def __init__(
        self,
        group: DeviceGroup,
        specs: Sequence[TensorSpec],
        bucket_bytes: int,
        timeout_s: float = 600.0,
        connect: Connect | None = None,
    ) -> None:
        largest = max(specs, key=nbytes) if specs else None
        if group.backend == "ipc" and largest is not None and nbytes(largest) > bucket_bytes:
            raise WeightError(
                f"{largest.name} has {nbytes(largest)} bytes, the ipc bucket {bucket_bytes}: raise "
                "actor_rollout_ref.rollout.update_weights_bucket_megabytes"
            )
        self._group, self._bucket_bytes = group, bucket_bytes
        self._source, self._conversation = DeclaredSource(specs), ServerConversation(group, timeout_s)
        self._connect = connect or connect_vllm
        self._engine: Any = None

    def publish(self, named: Iterable[tuple[str, torch.Tensor]], version: int) -> WeightManifest:
        """See WeightSender. Returns when every server answers with `version`; `Servers.update_weights` is then a no-op.

        Raises:
            WeightError: the tensors are not the declared ones.
            DeadlineExceeded: a server did not answer.
        """
        if self._engine is None:
            self._engine = self._connect(self._group, self._conversation, self._source, self._bucket_bytes)
        self._conversation.version = version
        self._source.offer(named)
        self._engine.send_weights()
        location = f"{self._group.address}:{self._group.port}" if self._group.backend == "nccl" else "cuda-ipc"
        sizes = tuple(nbytes(spec) for spec in self._source.specs)
        numbered = tuple(
            TensorSpec(spec.name, spec.dtype, spec.shape, index, 0) for index, spec in enumerate(self._source.specs)
        )
        return WeightManifest(version, self._group.backend, location, numbered, sizes)

    def close(self) -> None:
        """Leave the group."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None


def connect_vllm(
    group: DeviceGroup, conversation: ServerConversation, source: DeclaredSource, bucket_bytes: int
) -> Any:
    """vLLM's trainer engine, rendezvous done. Raises WeightError without CUDA."""
    if not torch.cuda.is_available():
        raise WeightError(f"{group.backend} moves weights between GPUs and this process sees none; use shm on a CPU")
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    info: Any
    if group.backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        info = NCCLTrainerInitInfo(
            rank=group.rank,
            master_address=group.address,
            master_port=group.port,
            world_size=group.world_size,
            packed=True,
            packed_buffer_size_bytes=bucket_bytes,
        )
    else:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        info = IPCTrainerInitInfo(rank=group.rank, packed=True, packed_buffer_size_bytes=bucket_bytes)
    return WeightTransferTrainerFactory.trainer_init(info, client=conversation, source=_as_vllm_source(source))


def _as_vllm_source(source: DeclaredSource) -> Any:
    """The source under vLLM's abstract class, which brings its grouping."""
    from vllm.distributed.weight_transfer.base import WeightSource

    class Declared(WeightSource):
        def metadata(self) -> list[Any]:
            return source.metadata()

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(source)

    return Declared()

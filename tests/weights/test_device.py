"""Device transports without devices: who is told what, in which order, and what is refused before anything moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from verl_core.errors import ConfigError, DeadlineExceeded, WeightError
from verl_core.weights.device import DeclaredSource, DeviceGroup, DeviceSender, ServerConversation, connect_vllm
from verl_core.weights.layout import layout_of
from verl_core.weights.sender import backend_of, sender_for
from verl_core.weights.shm import ShmSender

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
SPECS = layout_of(WEIGHTS.items(), 1 << 20).tensors


class NotingServer:
    """Stands in for a server with GPUs: writes down what it is told."""

    def __init__(self, error: Exception | None = None, slow_s: float = 0.0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._error, self._slow_s = error, slow_s

    def call(self, method: str, *arguments: Any) -> None:
        time.sleep(self._slow_s)
        self.calls.append((method, *arguments))
        if self._error is not None:
            raise self._error


class RecordingEngine:
    """Stands in for vLLM's trainer engine: drives the conversation the same way, moves nothing."""

    def __init__(self, conversation: ServerConversation, source: DeclaredSource) -> None:
        self.conversation, self.source, self.sent, self.closed = conversation, source, dict[str, torch.Tensor](), False
        conversation.init_weight_transfer_engine({"rank_offset": 1, "world_size": 5})

    def send_weights(self) -> None:
        self.conversation.start_weight_update()
        self.sent = dict(self.source)
        self.conversation.update_weights({"names": [m.name for m in self.source.metadata()]})
        self.conversation.finish_weight_update()

    def shutdown(self) -> None:
        self.closed = True


def group(servers: list[NotingServer], **changes: Any) -> DeviceGroup:
    given: dict[str, Any] = {"backend": "nccl", "rank": 0, "servers": servers, "workers_per_server": 2}
    return DeviceGroup(**(given | {"address": "host", "port": 29_500} | changes))


def test_a_publication_in_order_and_every_server_in_its_place() -> None:
    servers, engines = [NotingServer(), NotingServer()], []

    def connect(_: DeviceGroup, talk: ServerConversation, source: DeclaredSource, size: int) -> RecordingEngine:
        assert size == 1 << 20
        engines.append(RecordingEngine(talk, source))
        return engines[0]

    members = group(servers)
    assert members.world_size == 5  # the sender and 2 servers x 2 devices
    sender = DeviceSender(members, SPECS, 1 << 20, connect=connect)
    for version in (3, 4):
        manifest = sender.publish(iter(WEIGHTS.items()), version)
        assert (manifest.version, manifest.backend, manifest.location) == (version, "nccl", "host:29500")
        assert [s.name for s in manifest.tensors] == ["a", "b"]
        assert engines[0].sent.keys() == WEIGHTS.keys()
    update = [("start_weight_update",), ("receive_weights", {"names": ["a", "b"]})]
    for index, server in enumerate(servers):
        rendezvous = ("init_weight_transfer", {"rank_offset": 1 + 2 * index, "world_size": 5})
        both = [*update, ("finish_weight_update", 3), *update, ("finish_weight_update", 4)]
        assert server.calls == [rendezvous, *both]
    sender.close()
    assert engines[0].closed
    assert len(engines) == 1


def test_ipc_needs_no_rank() -> None:
    server = NotingServer()
    ServerConversation(group([server], backend="ipc"), 5.0).init_weight_transfer_engine({"packed": True})
    assert server.calls == [("init_weight_transfer", {"packed": True})]


def test_tensors_must_be_the_declared_ones() -> None:
    def offered(named: Iterator[tuple[str, torch.Tensor]]) -> list[str]:
        source = DeclaredSource(SPECS)
        source.offer(named)
        return [name for name, _ in source]

    assert offered(iter(WEIGHTS.items())) == ["a", "b"]
    for bad, message in (
        (reversed(WEIGHTS.items()), "tensor 0"),
        (iter([("a", WEIGHTS["a"])]), "first missing: b"),
        (iter([*WEIGHTS.items(), ("c", torch.ones(1))]), "c was not declared"),
        (iter([("a", WEIGHTS["a"].double())]), "float64"),
        (iter([("a", WEIGHTS["a"].view(3, 2))]), "tensor 0"),
    ):
        with pytest.raises(WeightError, match=message):
            offered(bad)
    with pytest.raises(WeightError, match="list of tensors"):
        DeclaredSource([])


def test_a_server_that_fails_or_hangs_is_an_error() -> None:
    with pytest.raises(ValueError, match="no memory"):
        ServerConversation(group([NotingServer(), NotingServer(ValueError("no memory"))]), 5.0).start_weight_update()
    with pytest.raises(DeadlineExceeded, match="start_weight_update of 2 servers"):
        ServerConversation(group([NotingServer(), NotingServer(slow_s=1.0)]), 0.2).start_weight_update()


def test_refused_before_anything_moves() -> None:
    with pytest.raises(WeightError, match="address and a port"):
        group([NotingServer()], address="")
    with pytest.raises(WeightError, match="no servers"):
        group([])
    assert group([], rank=1).world_size == 1  # other ranks know no servers
    with pytest.raises(WeightError, match="update_weights_bucket_megabytes"):
        DeviceSender(group([NotingServer()], backend="ipc"), SPECS, 8)
    sender = DeviceSender(group([NotingServer()]), SPECS, 1 << 20)
    if not torch.cuda.is_available():
        with pytest.raises(WeightError, match="sees none"):
            sender.publish(iter(WEIGHTS.items()), 1)
        with pytest.raises(WeightError, match="sees none"):
            connect_vllm(
                group([NotingServer()]), ServerConversation(group([NotingServer()]), 1.0), DeclaredSource(SPECS), 9
            )


def test_the_backend_fits_the_device() -> None:
    assert [backend_of("auto", "cpu"), backend_of("auto", "cuda"), backend_of("shm", "cuda")] == ["shm", "ipc", "shm"]
    assert backend_of("nccl", "cuda") == "nccl"
    assert [backend_of("auto", "cuda", apart=True), backend_of("auto", "cpu", apart=True)] == ["nccl", "shm"]
    for setting in ("ipc", "nccl"):
        with pytest.raises(ConfigError, match=r"trainer\.device is cpu"):
            backend_of(setting, "cpu")  # type: ignore[arg-type]


def test_sender_for(tmp_path: Path) -> None:
    assert isinstance(sender_for("shm", 1 << 20, folder=tmp_path), ShmSender)
    assert isinstance(sender_for("nccl", 1 << 20, group=group([NotingServer()]), specs=SPECS), DeviceSender)
    with pytest.raises(WeightError, match="folder"):
        sender_for("shm", 1 << 20)
    with pytest.raises(WeightError, match="group"):
        sender_for("ipc", 1 << 20)
    with pytest.raises(WeightError, match="unknown weight backend"):
        sender_for("pigeon", 1 << 20)  # type: ignore[arg-type]

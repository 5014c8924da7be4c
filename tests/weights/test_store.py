"""Weights through storage: whole versions or none, whatever breaks, on a folder and behind a URL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verl_core.config.schema import RunConfig
from verl_core.errors import WeightError
from verl_core.record.storage import open_storage
from verl_core.weights.interface import WeightManifest
from verl_core.weights.manifest import DTYPES, forget_current, from_dict, read_current, to_dict
from verl_core.weights.receiving import mapped, received
from verl_core.weights.sender import run_backend, sender_for
from verl_core.weights.store import StoreReceiver, StoreSender


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run" / "weights") if request.param == "folder" else f"memory://weights-{tmp_path.name}/w"


def some_weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (7, 5), "empty": (0, 3), "layer.weight": (16, 8), "layer.bias": (8,), "scalar": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("bucket_bytes", [64, 256, 1 << 20])
def test_what_is_published_is_received_bit_for_bit(place: str, bucket_bytes: int) -> None:
    manifest = StoreSender(place, bucket_bytes).publish(some_weights(1).items(), 1)
    assert read_current(place) == manifest == from_dict(to_dict(manifest))
    assert (len(manifest.bucket_bytes) > 1) == (bucket_bytes < 1 << 20)
    assert_equal({name: tensor.clone() for name, tensor in received(manifest)}, some_weights(1))
    tensors, segments = mapped(manifest)
    assert segments == []
    assert_equal(tensors, some_weights(1))


def test_every_dtype_and_no_memory_is_shared_with_the_sender(place: str) -> None:
    wanted = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    sent = {name: tensor.clone() for name, tensor in wanted.items()}
    manifest = StoreSender(place, 64).publish(sent.items(), 1)
    for tensor in sent.values():
        tensor.zero_()
    assert_equal(StoreReceiver().mapped(manifest), wanted)


def test_views_and_transposes_are_sent_as_they_look(place: str) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    manifest = StoreSender(place, 1 << 10).publish([("t", base.T), ("part", base[1:, ::2])], 1)
    assert_equal(StoreReceiver().mapped(manifest), {"t": base.T.contiguous(), "part": base[1:, ::2].contiguous()})


def test_the_version_before_stays_readable_and_older_ones_go(place: str) -> None:
    sender = StoreSender(place, 256)
    manifests = [sender.publish(some_weights(version).items(), version) for version in range(1, 4)]
    assert_equal(StoreReceiver().mapped(manifests[2]), some_weights(3))
    assert_equal(StoreReceiver().mapped(manifests[1]), some_weights(2))
    with pytest.raises(WeightError, match="bucket 0 of weight version 1 is not there any more"):
        StoreReceiver().mapped(manifests[0])


def test_a_publication_that_breaks_half_way_moves_nothing(place: str) -> None:
    sender = StoreSender(place, 64)
    whole = sender.publish(some_weights(1).items(), 1)

    def broken() -> object:
        yield from list(some_weights(2).items())[:3]
        raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError, match="the trainer died"):
        sender.publish(broken(), 2)
    assert read_current(place) == whole
    assert_equal(StoreReceiver().mapped(whole), some_weights(1))
    again = StoreSender(place, 64).publish(some_weights(3).items(), 2)  # the next process tries again
    assert read_current(place) == again
    assert_equal(StoreReceiver().mapped(again), some_weights(3))


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_bucket_is_noticed_before_a_tensor_of_it_is_given(place: str, damage: str) -> None:
    manifest = StoreSender(place, 256).publish(some_weights(1).items(), 1)
    storage, path = open_storage(place), "00000001/0001.bucket"
    data = bytearray(storage.get(path))
    storage.put(path, bytes(data[:-1]) if damage == "cut" else bytes([data[0] ^ 1, *data[1:]]))
    given = []
    with pytest.raises(WeightError, match=r"bucket 1 of weight version 1 has \d+ bytes with checksum .* damaged"):
        given.extend(name for name, _ in StoreReceiver().receive(manifest))
    assert given == [spec.name for spec in manifest.tensors if spec.bucket == 0]
    with pytest.raises(WeightError, match="damaged"):
        mapped(manifest)


def test_what_an_earlier_run_published_can_be_forgotten(place: str) -> None:
    StoreSender(place, 64).publish(some_weights(1).items(), 1)
    forget_current(place)
    forget_current(place)
    assert read_current(place) is None


def test_refusals(tmp_path: Path) -> None:
    sender = StoreSender(tmp_path, 64)
    with pytest.raises(WeightError, match="given twice"):
        sender.publish([("a", torch.zeros(2)), ("a", torch.zeros(2))], 1)
    with pytest.raises(WeightError, match="no tensors"):
        sender.publish([], 1)
    with pytest.raises(WeightError, match="too small"):
        StoreSender(tmp_path, 8)
    with pytest.raises(WeightError, match="cannot be read from storage"):
        list(StoreReceiver().receive(WeightManifest(1, "shm", "x", (), ())))
    with pytest.raises(WeightError, match="needs the folder"):
        sender_for("store", 64)
    assert read_current(tmp_path) is None


@pytest.mark.parametrize(
    ("asked", "mode", "backend"),
    [("auto", "split", "store"), ("store", "split", "store"), ("store", "shared", "store"), ("auto", "shared", "shm")],
)
def test_two_clusters_share_storage_and_nothing_else(asked: str, mode: str, backend: str) -> None:
    config = RunConfig()
    config.ray.mode = mode  # type: ignore[assignment]
    config.actor_rollout_ref.rollout.update_weights_backend = asked  # type: ignore[assignment]
    assert run_backend(config, "cpu") == backend

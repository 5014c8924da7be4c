"""Shared-memory transfer: what is received is what was sent, and nothing broken is ever received."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.errors import WeightError
from verl_core.weights.layout import ALIGNMENT, BucketLayout, layout_of
from verl_core.weights.manifest import DTYPES, forget_current, from_dict, nbytes, read_current, to_dict
from verl_core.weights.shm import ShmReceiver, ShmSender, weights_folder

Named = dict[str, torch.Tensor]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = weights_folder(f"test-{os.getpid()}-{time.monotonic_ns()}")
    yield path
    ShmSender(path, 64).remove()


def some_weights(seed: int = 0) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(1, generator=generator).to(torch.bfloat16),
        "c": torch.randint(0, 9, (4, 2, 2), generator=generator),
        "d": torch.randn(70, generator=generator),
        "scalar": torch.randn((), generator=generator),
    }


def received(folder: Path) -> Named:
    manifest = read_current(folder)
    assert manifest is not None
    return {name: tensor.clone() for name, tensor in ShmReceiver().receive(manifest)}


def assert_equal(got: Named, want: Named) -> None:
    assert list(got) == list(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(got[name], tensor)


@pytest.mark.parametrize("bucket_bytes", [64, 100, 256, 1 << 20])
def test_round_trip_through_buckets_of_any_size(folder: Path, bucket_bytes: int) -> None:
    sender = ShmSender(folder, bucket_bytes)
    assert read_current(folder) is None
    for version in (1, 2, 3, 4):
        weights = some_weights(version)
        manifest = sender.publish(weights.items(), version)
        assert manifest.version == version
        assert read_current(folder) == manifest
        assert_equal(received(folder), weights)


def test_bucket_count_by_hand(folder: Path) -> None:
    """Sizes 60, 2, 128, 280, 4 bytes; offsets are multiples of 64; limit 128.
    a at 0..60, b at 64..66; c would end at 256: new bucket; d is larger than the limit: its own; scalar: new.
    """
    manifest = ShmSender(folder, 128).publish(some_weights().items(), 1)
    assert [(s.name, s.bucket, s.offset) for s in manifest.tensors] == [
        ("a", 0, 0),
        ("b", 0, 64),
        ("c", 1, 0),
        ("d", 2, 0),
        ("scalar", 3, 0),
    ]
    assert manifest.bucket_bytes == (66, 128, 280, 4)


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.integers(0, 200)), max_size=30), st.integers(64, 700))
def test_layout_never_overlaps(sizes: list[tuple[str, int]], limit: int) -> None:
    named = [(f"t{i}", torch.empty(n, dtype=DTYPES[d], device="meta")) for i, (d, n) in enumerate(sizes)]
    layout = layout_of(named, limit)
    ends: dict[int, int] = {}
    for spec in layout.tensors:
        assert spec.offset % ALIGNMENT == 0
        assert spec.offset >= ends.get(spec.bucket, 0)
        ends[spec.bucket] = spec.offset + nbytes(spec)
    assert [ends[bucket] for bucket in range(len(layout.used))] == layout.used
    alone = {bucket for bucket in ends if [s.bucket for s in layout.tensors].count(bucket) == 1}
    assert all(used <= limit for bucket, used in enumerate(layout.used) if bucket not in alone)


def test_the_previous_version_stays_readable(folder: Path) -> None:
    sender = ShmSender(folder, 128)
    first = sender.publish(some_weights(1).items(), 1)
    sender.publish(some_weights(2).items(), 2)
    assert_equal({n: t.clone() for n, t in ShmReceiver().receive(first)}, some_weights(1))
    sender.publish(some_weights(3).items(), 3)
    with pytest.raises(WeightError, match="version 1 has checksum"):
        list(ShmReceiver().receive(first))


def test_a_reader_keeps_its_version_while_newer_ones_are_published(folder: Path) -> None:
    """Version 3 goes into the slot of version 1, which is being read: it must not change under the reader's hands."""
    sender = ShmSender(folder, 1 << 16)
    tensors, segments = ShmReceiver().mapped(sender.publish(some_weights(1).items(), 1))
    for version in (2, 3, 4, 5):
        sender.publish(some_weights(version).items(), version)
        assert_equal(tensors, some_weights(1))
        assert_equal(received(folder), some_weights(version))
    for segment in segments:
        segment.close()


def test_mappings_are_reused_when_nobody_reads(folder: Path) -> None:
    sender = ShmSender(folder, 1 << 16)
    sender.publish(some_weights(1).items(), 1)
    sender.publish(some_weights(2).items(), 2)
    inodes = {file: file.stat().st_ino for file in folder.rglob("*.bucket")}
    for version in (3, 4, 5):
        sender.publish(some_weights(version).items(), version)
        received(folder)
    assert inodes == {file: file.stat().st_ino for file in folder.rglob("*.bucket")}


def test_larger_tensors_than_before_get_larger_files(folder: Path) -> None:
    sender = ShmSender(folder, 64)
    for version, size in enumerate([10, 10, 1000, 2000, 5], start=1):
        weights = {"x": torch.full((size,), float(version))}
        sender.publish(weights.items(), version)
        assert_equal(received(folder), weights)


def test_reading_does_not_change_what_others_read(folder: Path) -> None:
    manifest = ShmSender(folder, 1 << 16).publish(some_weights().items(), 1)
    tensors, _ = ShmReceiver().mapped(manifest)
    tensors["a"].zero_()
    assert_equal(received(folder), some_weights())


def test_damage_is_noticed(folder: Path) -> None:
    manifest = ShmSender(folder, 128).publish(some_weights().items(), 1)
    file = Path(manifest.location) / "0001.bucket"
    with file.open("r+b") as opened:
        opened.seek(7)
        byte = opened.read(1)
        opened.seek(7)
        opened.write(bytes([byte[0] ^ 1]))
    got = []
    with pytest.raises(WeightError, match="bucket 1 of weight version 1"):
        got.extend(name for name, _ in ShmReceiver().receive(manifest))
    assert got == ["a", "b"]  # bucket 0 is whole, and nothing of bucket 1 came out
    with pytest.raises(WeightError, match="checksum"):
        ShmReceiver().mapped(manifest)
    os.truncate(file, 5)
    with pytest.raises(WeightError, match="has 5 bytes"):
        ShmReceiver().mapped(manifest)
    file.unlink()
    with pytest.raises(WeightError, match="does not exist"):
        ShmReceiver().mapped(manifest)


def test_a_failed_publication_leaves_the_pointer(folder: Path) -> None:
    sender = ShmSender(folder, 128)
    sender.publish(some_weights(1).items(), 1)

    def breaks() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(3)
        raise RuntimeError("the trainer broke")

    for bad, error in (
        (breaks(), RuntimeError),
        (iter([("a", torch.zeros(3)), ("a", torch.zeros(3))]), WeightError),
        (iter([("a", torch.zeros(3, dtype=torch.complex64))]), WeightError),
        (iter([]), WeightError),
    ):
        with pytest.raises(error):
            sender.publish(bad, 2)
        assert_equal(received(folder), some_weights(1))
    sender.publish(some_weights(2).items(), 2)
    assert_equal(received(folder), some_weights(2))


def test_a_new_sender_continues_where_the_old_one_ended(folder: Path) -> None:
    old = ShmSender(folder, 128)
    first = old.publish(some_weights(1).items(), 1)
    old.close()
    assert_equal(received(folder), some_weights(1))
    new = ShmSender(folder, 128)
    second = new.publish(some_weights(2).items(), 2)
    assert second.location != first.location
    assert_equal({n: t.clone() for n, t in ShmReceiver().receive(first)}, some_weights(1))


def test_another_process_receives_it(folder: Path) -> None:
    manifest = ShmSender(folder, 128).publish(some_weights().items(), 7)
    code = f"""
from verl_core.weights.manifest import read_current
from verl_core.weights.shm import ShmReceiver
manifest = read_current({str(folder)!r})
print(manifest.version, sum(float(t.double().sum()) for _, t in ShmReceiver().receive(manifest)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    version, total = done.stdout.split()
    assert int(version) == manifest.version
    assert float(total) == pytest.approx(sum(float(t.double().sum()) for t in some_weights().values()), abs=1e-9)


def test_a_full_file_system_is_an_error_and_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    sender = ShmSender(tmp_path, 128)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightError, match="is full"):
        sender.publish(some_weights().items(), 1)
    assert read_current(tmp_path) is None


def test_half_a_gigabyte_in_well_under_a_second_when_pages_are_reused(folder: Path) -> None:
    """The size of the 135M model in float32. Generous limits: others use the machine too."""
    weights = {f"w{i}": torch.ones(1 << 22) for i in range(32)}  # 32 x 16 MiB
    sender = ShmSender(folder, 128 << 20)
    for version in (1, 2):
        sender.publish(weights.items(), version)
    began = time.monotonic()
    manifest = sender.publish(weights.items(), 3)
    published = time.monotonic() - began
    began = time.monotonic()
    ShmReceiver().mapped(manifest)
    mapped = time.monotonic() - began
    print(f"512 MiB: published in {published:.2f} s, mapped and verified in {mapped:.2f} s")
    assert published < 3.0
    assert mapped < 3.0


def test_manifest_survives_json_and_refuses_nonsense(folder: Path) -> None:
    manifest = ShmSender(folder, 128).publish(some_weights().items(), 1)
    assert from_dict(to_dict(manifest)) == manifest
    good = to_dict(manifest)
    tensors = good["tensors"]
    bad = [
        {},
        good | {"version": "x"},
        good | {"checksums": ()},
        good | {"tensors": (*tensors, tensors[0])},
        good | {"tensors": (tensors[0] | {"bucket": 9},)},
        good | {"tensors": (tensors[0] | {"offset": 64},)},
        good | {"tensors": (tensors[0] | {"shape": (100,)},)},
        good | {"tensors": (tensors[0] | {"dtype": "complex64"},)},
    ]
    for value in bad:
        with pytest.raises(WeightError):
            from_dict(value)
    (folder / "current").write_text("{")
    with pytest.raises(WeightError, match="is not JSON"):
        read_current(folder)
    forget_current(folder)
    forget_current(folder)
    assert read_current(folder) is None


def test_senseless_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="too small"):
        ShmSender(tmp_path, 3)
    layout = BucketLayout(64)
    layout.place("a", torch.zeros(1))
    with pytest.raises(WeightError, match="twice"):
        layout.place("a", torch.zeros(1))
    with pytest.raises(WeightError, match="has no"):
        ShmSender(weights_folder("run", tmp_path / "nothing"), 1 << 20)
    assert weights_folder("a/b c", tmp_path).name == f"verl-weights-{os.getuid()}-a-b-c"

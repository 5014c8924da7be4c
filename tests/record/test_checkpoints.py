"""Whatever moment the power goes, the store gives back a whole checkpoint; and it never gives a broken or foreign
one.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.record.crash_disk import CrashDisk, PowerCut
from verl_core.config import RunConfig
from verl_core.errors import CheckpointError, ConfigError
from verl_core.record.checkpoints import Checkpoint, CheckpointStore, content_digest
from verl_core.record.rundir import RunDir

SIZE = 1000


def writer(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model/weights.bin").write_bytes(bytes([step]) * SIZE)
        (folder / "optimizer.bin").write_bytes(bytes([step + 100]) * SIZE)

    return write


def holds(checkpoint: Checkpoint | None, step: int) -> bool:
    """Whether it is the checkpoint that `writer(step)` filled."""
    return (
        checkpoint is not None
        and (checkpoint.step, checkpoint.extra) == (step, {"position": step})
        and (checkpoint.folder / "model/weights.bin").read_bytes() == bytes([step]) * SIZE
        and (checkpoint.folder / "optimizer.bin").read_bytes() == bytes([step + 100]) * SIZE
    )


def save(store: CheckpointStore, step: int) -> Checkpoint:
    return store.save(step, writer(step), {"position": step})


@pytest.fixture(params=["local", "object store"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run") if request.param == "local" else RunDir(f"memory://{uuid.uuid4().hex}/run")


def test_save_find_open_and_keep_the_last_k(run: RunDir, tmp_path: Path) -> None:
    store = CheckpointStore(run, keep=2)
    assert store.newest_whole() is None
    for step in (5, 10, 15):
        assert holds(save(store, step), step)
        assert run.read("latest").decode() == f"checkpoints/{step:06d}\n"
    assert (store.steps(), run.names("checkpoints")) == ([10, 15], ["000010", "000015"])
    fresh = CheckpointStore(RunDir(run.root), keep=2)
    assert holds(fresh.newest_whole(), 15)
    assert holds(fresh.newest_whole(at_most=14), 10)
    assert fresh.newest_whole(at_most=9) is None
    assert holds(store.open(10), 10)
    assert holds(CheckpointStore(RunDir(tmp_path / "other")).open(run.url("checkpoints/000010")), 10)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5 .* there are: 10, 15"):
        store.open(5)
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        store.open(run.url("checkpoints/000005"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: run.remove("checkpoints/000010/optimizer.bin"), "optimizer.bin is missing"),
        (lambda run: run.publish_bytes("checkpoints/000010/optimizer.bin", b"x"), "1 bytes, 1000 were saved"),
        (lambda run: run.publish_bytes("checkpoints/000010/optimizer.bin", b"x" * SIZE), "optimizer.bin is damaged"),
        (lambda run: run.publish_bytes("checkpoints/000010/MANIFEST.json", b"{"), "MANIFEST.json is damaged"),
        (lambda run: run.remove("checkpoints/000010/MANIFEST.json"), "has no MANIFEST.json"),
        (
            lambda run: run.publish_bytes(
                "checkpoints/000010/MANIFEST.json",
                run.read("checkpoints/000010/MANIFEST.json").replace(b'"position": 10', b'"position": 11'),
            ),
            "does not match its own digest",
        ),
    ],
)
def test_a_broken_checkpoint_is_skipped_and_said(
    run: RunDir, damage: Callable[[RunDir], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(run)
    for step in (5, 10):
        save(store, step)
    damage(run)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert holds(store.newest_whole(), 5)
    (message,) = caplog.messages  # said once, however often it is searched
    assert message.startswith("checkpoint of step 10 is broken and was skipped: checkpoints/000010: ")
    assert reason in message
    with pytest.raises(CheckpointError, match=reason):
        store.open(10)
    # The run goes on from 5 and reaches 10 again: the new one gets another name and is the one that counts.
    again = save(store, 10)
    assert again.path == "checkpoints/000010.1"
    assert holds(store.newest_whole(), 10)
    assert holds(store.open(10), 10)


def test_when_nothing_is_whole_it_is_said(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the run can go on without one, from its stored batches, the trainer decides."""
    store = CheckpointStore(run)
    save(store, 5)
    run.remove("checkpoints/000005/optimizer.bin")
    with caplog.at_level(logging.WARNING):
        assert store.newest_whole() is None
    assert "optimizer.bin is missing" in caplog.text


def test_the_page_of_errors_shows_both_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text()
    run = RunDir(tmp_path)
    store = CheckpointStore(run)

    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"a")

    store.save(2, write, {})
    run.publish_bytes("checkpoints/000002/model.safetensors", b"b")
    with caplog.at_level(logging.WARNING):
        assert store.newest_whole() is None
    assert f"```text\n{caplog.messages[0]}\n```" in page
    folders = list[Path]()
    with pytest.raises(CheckpointError) as caught:
        store.save(2, folders.append, {})
    assert f"```text\n{str(caught.value).replace(str(folders[0]), 'FOLDER')}\n```" in page


def test_a_save_that_wrote_elsewhere_is_no_checkpoint(run: RunDir) -> None:
    """A rank on another host fills a folder of the same name there."""
    store = CheckpointStore(run)
    save(store, 5)
    with pytest.raises(CheckpointError, match=r"step 10 has no files: .*another host.* Put trainer.default_local_dir"):
        store.save(10, lambda folder: None, {})
    assert run.names("checkpoints") == ["000005"]
    assert holds(store.newest_whole(), 5)


def test_a_save_reads_nothing_back(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store that would be the whole checkpoint over the network once more."""
    read = list[str]()
    monkeypatch.setattr(run.storage, "download", lambda path, target: read.append(path))
    assert holds(save(CheckpointStore(run), 5), 5)
    assert read == []


def test_the_digest_of_a_checkpoint_is_that_of_its_content(run: RunDir, tmp_path: Path) -> None:
    store = CheckpointStore(run)
    digests = {content_digest(run.url(save(store, step).path)) for step in (5, 10, 10)}
    assert len(digests) == 3  # the second save of step 10 has another time in its manifest
    assert content_digest(run.url("checkpoints/000005") + "/") in digests
    run.remove("checkpoints/000005/MANIFEST.json")
    with pytest.raises(CheckpointError, match=r"000005 has no MANIFEST.json: its save never finished"):
        content_digest(run.url("checkpoints/000005"))
    with pytest.raises(CheckpointError, match="there is no checkpoint folder at"):
        content_digest(str(tmp_path / "nowhere" / "000005"))
    assert not (tmp_path / "nowhere").exists()


def test_an_abandoned_line_is_not_a_fallback_and_does_not_outlive_pruning(run: RunDir) -> None:
    store = CheckpointStore(run)
    for step in (5, 10, 15):
        save(store, step)
    save(store, 6)  # somebody resumed from 5
    assert holds(store.newest_whole(), 6)
    run.remove("checkpoints/000006/optimizer.bin")
    assert holds(store.newest_whole(), 5)
    save(CheckpointStore(run, keep=2), 7)
    assert run.names("checkpoints") == ["000006", "000007"]


def test_a_lost_pointer_costs_nothing(run: RunDir) -> None:
    store = CheckpointStore(run)
    for step in (5, 10):
        save(store, step)
    run.remove("latest")
    assert holds(store.newest_whole(), 10)
    run.publish_bytes("latest", b"\xff\0")
    assert holds(store.newest_whole(), 10)


def test_a_checkpoint_of_another_configuration_is_refused_with_the_settings(run: RunDir) -> None:
    config = RunConfig()
    save(CheckpointStore(run, config=config), 5)
    longer = copy.deepcopy(config)
    longer.trainer.total_epochs += 1  # how long a run lasts may change
    assert holds(CheckpointStore(run, config=longer).newest_whole(), 5)
    other = copy.deepcopy(config)
    other.actor_rollout_ref.actor.clip_ratio = 0.3
    store = CheckpointStore(run, config=other)
    with pytest.raises(
        CheckpointError, match=r"another configuration: .*clip_ratio: 0.2 -> 0.3.* Put these settings back"
    ):
        store.newest_whole()
    with pytest.raises(CheckpointError, match="clip_ratio"):
        store.open(5)
    assert holds(store.open(5, check_config=False), 5)


def test_a_failed_write_leaves_no_trace(run: RunDir) -> None:
    store = CheckpointStore(run)
    save(store, 5)

    def full(folder: Path) -> None:
        writer(10)(folder)
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.save(10, full, {})
    assert run.names("checkpoints") == ["000005"]
    assert run.sweep() == []
    assert holds(store.newest_whole(), 5)


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_actor_ckpt_to_keep"):
        CheckpointStore(RunDir(tmp_path), keep=0)


def saves_until_the_cut(root: Path, disk: CrashDisk, returned: list[int]) -> None:
    store = CheckpointStore(RunDir(root), keep=1)
    for step in (1, 2, 3):

        def write(folder: Path, step: int = step) -> None:
            disk.tick()
            writer(step)(folder)

        store.save(step, write, {"position": step})
        returned.append(step)


@pytest.mark.parametrize("lose_names", [False, True])
def test_a_power_cut_before_any_disk_operation_of_a_save(tmp_path: Path, lose_names: bool) -> None:
    stop_at, outcomes = 0, set()
    while True:
        stop_at += 1
        root = tmp_path / str(stop_at)
        root.mkdir()
        disk, returned = CrashDisk(root, stop_at, lose_names), list[int]()
        with pytest.MonkeyPatch.context() as patch:
            disk.patch(patch)
            with contextlib.suppress(PowerCut):
                saves_until_the_cut(root, disk, returned)
        if not disk.is_dead:
            break
        disk.settle()
        run = RunDir(root)
        run.sweep()
        store = CheckpointStore(run, keep=1)
        found = store.newest_whole()
        newest = found.step if found else 0
        assert newest in (len(returned), len(returned) + 1), f"cut before operation {stop_at}"
        assert found is None or holds(found, newest)
        outcomes.add((len(returned), newest))
        save(store, newest + 1)
        assert holds(store.newest_whole(), newest + 1)
        assert not list(root.rglob(".tmp-*"))
    assert stop_at > 60  # three saves of some twenty operations each were cut
    assert {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)} == outcomes


def test_kill_minus_nine_at_random_moments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import sys; from pathlib import Path; from verl_core.record.checkpoints import CheckpointStore\n"
        "from verl_core.record.rundir import RunDir\n"
        "store = CheckpointStore(RunDir(sys.argv[1]), keep=2)\n"
        "found = store.newest_whole()\n"
        "step = found.step if found else 0\n"
        "print(step, flush=True)\n"
        "while True:\n"
        "    step += 1\n"
        "    def write(folder):\n"
        "        for name in 'abcd': (folder / name).write_bytes(bytes([step % 256]) * 200_000)\n"
        "    store.save(step, write, {}); print(step, flush=True)"
    )
    rng, told = random.Random(1), 0
    for _ in range(6):
        victim = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert victim.stdout is not None
        first = int(victim.stdout.readline())
        assert first >= told
        lines = [victim.stdout.readline() for _ in range(rng.randint(1, 4))]
        time.sleep(rng.uniform(0, 0.03))
        victim.kill()
        told = [first, *(int(line) for line in [*lines, *victim.stdout.read().split()])][-1]
        victim.wait(timeout=30)
        with caplog.at_level(logging.WARNING):
            found = CheckpointStore(RunDir(tmp_path)).newest_whole()
        assert caplog.messages == []
        assert found is not None
        assert found.step in (told, told + 1)
        for name in "abcd":
            assert (found.folder / name).read_bytes() == bytes([found.step % 256]) * 200_000
    assert told >= 6
    assert len(os.listdir(tmp_path / "checkpoints")) < 12

"""One suite over both stores: what TrajectoryStore promises."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.transfer.build import failed_of, finished_of, prompt_of, same, tag_of, trajectory_of, uid_of
from verl_core.errors import StoreError
from verl_core.transfer.codec import pack
from verl_core.transfer.group import GroupStatus, GroupTag, Manifest
from verl_core.transfer.interface import Finished, TrajectoryStore
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.tq_store import TransferQueueStore

Store = MemoryStore | TransferQueueStore


def overwrite(store: Store, uid: str, blob: bytes) -> None:
    """Put other bytes in place of a group's rows, as a broken writer would."""
    if isinstance(store, MemoryStore):
        store._rows[uid] = blob
    else:
        store._client.put_rows({uid: blob})


def test_both_keep_the_protocol(store: Store) -> None:
    kept: TrajectoryStore = store
    assert kept.quarantined_tags == 0


def test_tags_are_written_whole_and_read_by_name(store: Store) -> None:
    pending = [tag_of(prompt_of(i), GroupStatus.PENDING) for i in range(5)]
    store.write_tags(pending)
    assert store.tags() == {tag.uid: tag for tag in pending}
    moved = replace(pending[2], status=GroupStatus.RUNNING, owner="agent-7")
    store.write_tags([moved])
    assert store.read_tags([uid_of(2), "unknown", uid_of(0)]) == {uid_of(2): moved, uid_of(0): pending[0]}
    assert store.tags()[uid_of(2)] == moved
    back = replace(pending[2], owner="")
    store.write_tags([back])  # nothing of the earlier owner survives
    assert store.tags()[uid_of(2)] == back


def test_finish_fills_the_manifest_and_the_rows_come_back_in_its_order(store: Store) -> None:
    prompt = prompt_of(3)
    rows = [
        trajectory_of(prompt, 1, length=4),
        trajectory_of(prompt, 0, index=1, versions=(5, 6)),
        trajectory_of(prompt, 0),
    ]
    (tag,) = store.finish([Finished(tag_of(prompt, GroupStatus.FINISHED), tuple(rows))])
    ordered = [rows[2], rows[1], rows[0]]
    manifest = tag.manifest
    assert manifest.keys == (f"{prompt.uid}_0_0", f"{prompt.uid}_0_1", f"{prompt.uid}_1_0")
    assert manifest.tokens == 5 + 5 + 4
    assert (manifest.min_version, manifest.max_version) == (5, 7)
    assert manifest.nbytes == len(pack(ordered))
    assert time.time() - 60 < tag.updated < time.time() + 60
    assert store.read_tags([prompt.uid]) == {prompt.uid: tag}
    assert all(same(a, b) for a, b in zip(store.fetch([manifest]), ordered, strict=True))


def test_many_groups_in_one_commit(store: Store) -> None:
    groups = [finished_of(prompt_of(i), length=3 + i) for i in range(20)]
    tags = store.finish(groups)
    assert [tag.uid for tag in tags] == [uid_of(i) for i in range(20)]
    assert set(store.wait(10)) == {uid_of(i) for i in range(20)}
    mixed = [tags[7], tags[3], tags[11]]
    rows = store.fetch([tag.manifest for tag in mixed])
    wanted = [row for i in (7, 3, 11) for row in groups[i].trajectories]
    assert all(same(a, b) for a, b in zip(rows, wanted, strict=True))


def test_a_failed_group_keeps_its_reasons_and_its_survivors(store: Store) -> None:
    (partial,) = store.finish([failed_of(prompt_of(1), survivors=1, errors=("session 1: boom",))])
    (nothing,) = store.finish([failed_of(prompt_of(2), survivors=0, errors=("a", "b"))])
    assert partial.status is GroupStatus.FAILURE
    assert (len(partial.manifest.keys), partial.manifest.errors) == (1, ("session 1: boom",))
    assert nothing.manifest == Manifest(errors=("a", "b"))
    assert store.tags() == {tag.uid: tag for tag in (partial, nothing)}
    assert store.fetch([nothing.manifest]) == []


def test_finish_refuses_what_would_mix_groups(store: Store) -> None:
    prompt, stranger = prompt_of(1), prompt_of(2)
    done = tag_of(prompt, GroupStatus.FINISHED)
    bad: list[tuple[Finished, str]] = [
        (Finished(done, (trajectory_of(stranger, 0),)), "another group"),
        (Finished(done, (replace(trajectory_of(prompt, 0), ordinal=9),)), "another group"),
        (Finished(done, (trajectory_of(prompt, 0), trajectory_of(prompt, 0))), "two trajectories"),
        (Finished(tag_of(prompt, GroupStatus.RUNNING), ()), "only finished or failed"),
    ]
    for group, message in bad:
        with pytest.raises(StoreError, match=message):
            store.finish([finished_of(prompt_of(5)), group])
    assert store.tags() == {}  # all or nothing: the good group of the same commit neither
    assert store.wait(0.1) == []


def test_missing_rows_are_named(store: Store) -> None:
    one, two, three = store.finish([finished_of(prompt_of(i)) for i in (1, 2, 3)])
    store.clear_rows([two.uid])
    with pytest.raises(StoreError, match=f"1 of 3 groups are missing: {two.uid}"):
        store.fetch([one.manifest, two.manifest, three.manifest])
    assert len(store.fetch([one.manifest, three.manifest])) == 4
    with pytest.raises(StoreError, match="1 of 1 groups are missing"):
        store.fetch([two.manifest])


def test_damaged_rows_and_rows_of_others_are_refused(store: Store) -> None:
    prompt = prompt_of(1)
    (tag,) = store.finish([finished_of(prompt)])
    rows = [trajectory_of(prompt, 0), trajectory_of(prompt, 1)]
    good = pack(rows)
    damaged = bytearray(good)
    damaged[-9] ^= 4
    for blob, message in [
        (bytes(damaged), "checksum"),
        (good[:-8], "cut off"),
        (b"", "cut off"),
        (pack(rows[:1]), "disagree"),
        (pack(rows[::-1]), "disagree"),
        (pack([]), "disagree"),
        (pack([replace(row, uid=uid_of(2)) for row in rows]), "disagree"),
    ]:
        overwrite(store, tag.uid, blob)
        with pytest.raises(StoreError, match=message) as caught:
            store.fetch([tag.manifest])
        assert tag.uid in str(caught.value)
    overwrite(store, tag.uid, good)
    assert len(store.fetch([tag.manifest])) == 2


def test_rows_that_disagree_with_their_manifest_are_refused(store: Store) -> None:
    (tag,) = store.finish([finished_of(prompt_of(1))])
    wrong = [
        replace(tag.manifest, tokens=tag.manifest.tokens + 1),
        replace(tag.manifest, nbytes=tag.manifest.nbytes - 8),
        replace(tag.manifest, min_version=0),
        replace(tag.manifest, max_version=8),
        replace(tag.manifest, keys=tag.manifest.keys[:1]),
    ]
    for manifest in wrong:
        with pytest.raises(StoreError, match="disagree"):
            store.fetch([manifest])


def test_clearing_takes_what_is_named_and_nothing_else(store: Store) -> None:
    tags = store.finish([finished_of(prompt_of(i)) for i in range(3)])
    store.clear_groups([uid_of(1), "never there"])
    store.clear_groups([uid_of(1)])
    assert set(store.tags()) == {uid_of(0), uid_of(2)}
    assert len(store.fetch([tags[1].manifest])) == 2  # claimed: the tag is gone, the rows stay
    store.clear_rows([uid_of(1), "never there"])
    store.clear_rows([uid_of(1)])
    assert len(store.fetch([tags[0].manifest, tags[2].manifest])) == 4
    store.reset()
    assert store.tags() == {}
    with pytest.raises(StoreError):
        store.fetch([tags[0].manifest])
    store.finish([finished_of(prompt_of(0))])  # and it can be used again
    assert set(store.tags()) == {uid_of(0)}


def test_nothing_is_a_fine_amount(store: Store) -> None:
    store.write_tags([])
    store.clear_groups([])
    store.clear_rows([])
    assert store.finish([]) == []
    assert store.read_tags([]) == {}
    assert store.fetch([]) == []
    assert store.tags() == {}


def test_waiting_ends_with_the_ring_or_the_time(store: Store) -> None:
    assert store.wait(0.0) == []
    started = time.monotonic()
    assert store.wait(0.2) == []
    assert 0.15 < time.monotonic() - started < 5
    timer = threading.Timer(0.3, lambda: store.finish([finished_of(prompt_of(4))]))
    timer.start()
    started = time.monotonic()
    assert store.wait(30) == [uid_of(4)]
    assert time.monotonic() - started < 10
    timer.join()
    assert store.wait(0.0) == []


def test_threads_may_share_it(store: Store) -> None:
    def work(thread: int) -> list[GroupTag]:
        return [store.finish([finished_of(prompt_of(100 * thread + i))])[0] for i in range(8)]

    with ThreadPoolExecutor(4) as pool:
        tags = [tag for part in pool.map(work, range(4)) for tag in part]
    assert store.tags() == {tag.uid: tag for tag in tags}
    assert len(store.fetch([tag.manifest for tag in tags])) == 64
    heard: set[str] = set()
    while part := store.wait(1.0):
        heard.update(part)
    assert heard == {tag.uid for tag in tags}


def test_a_big_batch_goes_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_core.transfer.tq_store._CALL_BYTES", 1000)
    monkeypatch.setattr("verl_core.transfer.tq_store._CALL_KEYS", 3)
    groups = [finished_of(prompt_of(i), length=40) for i in range(7)]
    tags = store.finish(groups)
    rows = store.fetch([tag.manifest for tag in tags])
    assert [row.key for row in rows] == [row.key for group in groups for row in group.trajectories]
    assert len(store.read_tags([tag.uid for tag in tags])) == 7
    store.clear_rows([tag.uid for tag in tags])
    store.clear_groups([tag.uid for tag in tags])
    assert store.tags() == {}

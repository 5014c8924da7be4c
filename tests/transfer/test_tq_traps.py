"""What TransferQueue passes over in silence, and what its users can do to each other, tried on the real thing."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.transfer.build import failed_of, finished_of, prompt_of, tag_of, uid_of
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.transfer.availability import require_transfer_queue
from verl_core.transfer.client import GROUPS, ROWS, QueueClient
from verl_core.transfer.group import NOWHERE, GroupStatus
from verl_core.transfer.host import StoreHost
from verl_core.transfer.tq_store import TransferQueueStore

QUICK_S = 2.0


@pytest.fixture
def client(tq_store: TransferQueueStore) -> QueueClient:
    return tq_store._client


def raw(client: QueueClient, work: Any) -> Any:
    """A call that the client would never make, on its loop."""
    return client._loop.run("raw", lambda: work(client._client), 20, lambda: "raw call")


def test_keys_without_a_whole_tag_are_left_out_and_counted(tq_store: TransferQueueStore, client: QueueClient) -> None:
    good = tag_of(prompt_of(1), GroupStatus.PENDING)
    tq_store.write_tags([good])
    raw(client, lambda tq: tq.async_kv_retrieve_meta(["empty"], GROUPS, create=True))  # a put that was cut off
    client.write_tags(
        GROUPS,
        {
            "foreign": {"status": "finished"},
            "not-json": {"tag": "{"},
            "half": {"tag": '{"uid": "half"}'},
            "liar": {"tag": '{"uid": "other"}'},
        },
    )
    assert tq_store.tags() == {good.uid: good}
    assert tq_store.quarantined_tags == 5
    assert tq_store.read_tags(["empty", "foreign", good.uid]) == {good.uid: good}
    assert tq_store.quarantined_tags == 7


def test_a_tag_is_written_whole(client: QueueClient) -> None:
    client.write_tags(GROUPS, {"a": {"tag": "1", "left": "over"}})
    client.write_tags(GROUPS, {"a": {"tag": "2"}})
    assert client.read_tags(GROUPS, ["a"]) == {"a": {"tag": "2"}}
    assert client.list_tags(GROUPS) == {"a": {"tag": "2"}}


def test_a_late_tag_of_a_cleared_group_is_whole_too(tq_store: TransferQueueStore) -> None:
    """TransferQueue creates the key again; what it creates must be readable, so that the sampler can sweep it."""
    (tag,) = tq_store.finish([finished_of(prompt_of(1))])
    tq_store.clear_groups([tag.uid])
    running = tag_of(prompt_of(1), GroupStatus.RUNNING)
    tq_store.write_tags([running])
    assert tq_store.tags() == {running.uid: running}


def test_a_refused_notification_does_not_pass_for_a_put(
    tq_store: TransferQueueStore, client: QueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TransferQueue logs it and reports success; its controller would never list the rows as readable."""
    tq_store.finish([failed_of(prompt_of(9))])
    monkeypatch.setattr(client._units, "_partition", "not there")  # the controller itself says no
    with pytest.raises(StoreError, match="does not count the rows"):
        tq_store.finish([finished_of(prompt_of(1))])
    assert uid_of(1) not in tq_store.tags()  # and the group does not claim to be finished
    with pytest.raises(StoreError, match="not readable"):
        client.get_rows([uid_of(1)])
    monkeypatch.undo()
    (tag,) = tq_store.finish([finished_of(prompt_of(1))])  # trying again mends it
    assert uid_of(1) in tq_store.tags()
    assert len(tq_store.fetch([tag.manifest])) == 2


def test_a_notification_without_answer_ends_at_the_deadline(
    store_host: StoreHost, tq_store: TransferQueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = TransferQueueStore(QueueClient(store_host.endpoint, QUICK_S), tq_store._bell, listens=False)

    async def unanswered(*_: object) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(hasty._client._client, "_request_controller", _only_notifications(hasty, unanswered))
    with pytest.raises(DeadlineExceeded, match="TransferQueue commit"):
        hasty.finish([finished_of(prompt_of(1))])
    assert uid_of(1) not in tq_store.tags()
    hasty._client.close()


def _only_notifications(store: TransferQueueStore, instead: Any) -> Any:
    ask = store._client._client._request_controller

    async def request(socket: Any, kind: Any, answer: Any, body: Any) -> Any:
        call = instead if "NOTIFY" in kind.name else ask
        return await call(socket, kind, answer, body)

    return lambda socket, request_type, response_type, body: request(socket, request_type, response_type, body)


def test_a_unit_that_lost_a_row_is_noticed(tq_store: TransferQueueStore, client: QueueClient) -> None:
    """The controller still lists the row; neither the place nor the key finds it, and the error names the group."""
    (tag,) = tq_store.finish([finished_of(prompt_of(1))])
    meta = raw(client, lambda tq: tq.async_kv_retrieve_meta([tag.uid], ROWS, create=False))
    raw(client, lambda tq: tq.storage_manager.clear_data(meta))
    for manifest in (tag.manifest, replace(tag.manifest, place=NOWHERE)):
        with pytest.raises(StoreError, match=f"{tag.uid}.*KeyNotFound"):
            tq_store.fetch([manifest])


def test_the_tag_says_where_the_rows_are(
    tq_store: TransferQueueStore, client: QueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers need the units only; one who was not told, or told wrong, asks the controller."""
    groups = [finished_of(prompt_of(i)) for i in range(5)]
    tags = tq_store.finish(groups)
    meta = raw(client, lambda tq: tq.async_kv_retrieve_meta([tag.uid for tag in tags], ROWS, create=False))
    assert [tag.manifest.place for tag in tags] == meta.global_indexes
    assert tq_store.read_tags([tags[3].uid])[tags[3].uid] == tags[3]
    unused = max(meta.global_indexes) + 1000
    for places in ([NOWHERE] * 5, [NOWHERE, *meta.global_indexes[1:]], [*meta.global_indexes[:4], unused]):
        told = [replace(tag.manifest, place=place) for tag, place in zip(tags, places, strict=True)]
        assert len(tq_store.fetch(told)) == 10

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the controller was asked")

    monkeypatch.setattr(client._client, "_request_controller", fails)
    rows = tq_store.fetch([tag.manifest for tag in tags])
    assert [row.key for row in rows] == [row.key for group in groups for row in group.trajectories]


def test_rows_of_another_type_are_refused(client: QueueClient) -> None:
    """A foreign writer put a tensor under a row's key: TransferQueue accepts it, and converts nothing."""
    from tensordict import TensorDict

    async def put(tq: Any) -> None:
        meta = await tq.async_kv_retrieve_meta(["k"], ROWS, create=True)
        await tq.storage_manager.put_data(TensorDict({"blob": torch.ones(1, 3)}, batch_size=1), meta)

    raw(client, put)
    with pytest.raises(StoreError, match="not all of them bytes"):
        client.get_rows(["k"])


def test_an_unknown_field_is_not_an_empty_answer(client: QueueClient) -> None:
    from tensordict import TensorDict

    async def put(tq: Any) -> None:
        meta = await tq.async_kv_retrieve_meta(["k"], ROWS, create=True)
        await tq.storage_manager.put_data(TensorDict({"else": torch.ones(1, 3)}, batch_size=1), meta)

    raw(client, put)
    with pytest.raises(StoreError, match="not readable"):
        client.get_rows(["k"])


def test_a_reused_index_cannot_pass_for_a_row(tq_store: TransferQueueStore) -> None:
    """TransferQueue gives freed indexes away at once: a reader with old metadata gets another key's bytes."""
    (tag,) = tq_store.finish([finished_of(prompt_of(1))])
    tq_store.clear_rows([tag.uid])
    others = tq_store.finish([finished_of(prompt_of(i)) for i in range(2, 1000)])  # takes every index that is free
    assert tag.manifest.place in {other.manifest.place for other in others}
    with pytest.raises(StoreError, match="disagree"):
        tq_store.fetch([tag.manifest])


def test_the_trainers_torch_threads_are_left_alone(tq_store: TransferQueueStore) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 2)
    try:
        (tag,) = tq_store.finish([finished_of(prompt_of(1))])
        tq_store.fetch([tag.manifest])
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *seen] == [before + 2] * 2
    finally:
        torch.set_num_threads(before)


def test_a_joiner_that_leaves_harms_nobody(tq_store: TransferQueueStore, store_host: StoreHost) -> None:
    other = TransferQueueStore.join(store_host.endpoint, call_timeout_s=20, listen=False)
    (tag,) = other.finish([finished_of(prompt_of(1))])
    with pytest.raises(StoreError, match="listen=True"):
        other.wait(0.1)
    other.close()
    other.close()
    assert tq_store.wait(5) == [uid_of(1)]
    assert len(tq_store.fetch([tag.manifest])) == 2
    with pytest.raises(StoreError, match="closed"):
        other.tags()


def test_stale_endpoints_are_told_apart(store_host: StoreHost, tmp_path: Path) -> None:
    live = store_host.endpoint
    with pytest.raises(StoreError, match="stale store endpoint"):
        TransferQueueStore.join(replace(live, epoch="0" * 32), call_timeout_s=20)
    nobody = replace(live.controller, ports={"handshake_socket": 1, "request_handle_socket": 1})
    with pytest.raises(StoreError, match="no store answers"):
        TransferQueueStore.join(replace(live, controller=nobody), call_timeout_s=20)
    with pytest.raises(StoreError, match="install the same one"):
        TransferQueueStore.join(replace(live, version="0.1.10"), call_timeout_s=20)
    live.publish(tmp_path / "endpoint.json")
    joined = TransferQueueStore.join(tmp_path / "endpoint.json", call_timeout_s=20, listen=False)
    assert joined.endpoint == live
    joined.close()


def outcome(call: Any) -> str:
    try:
        call(*[0.1] if call.__name__ == "wait" else [])
    except StoreError as error:
        return f"StoreError {'fork' in str(error)}"
    return "fine"


def test_a_fork_gets_an_error_instead_of_a_hang(tq_store: TransferQueueStore) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # whatever happens, this process must not go on as a second pytest
            os.write(write_end, ", ".join(map(outcome, (tq_store.tags, tq_store.wait, tq_store.close))).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    assert os.read(read_end, 1000).decode() == "StoreError True, StoreError True, fine"
    os.close(read_end)
    tq_store.write_tags([tag_of(prompt_of(1), GroupStatus.PENDING)])  # the parent goes on


def test_a_call_on_the_connections_own_loop_is_refused(tq_store: TransferQueueStore, client: QueueClient) -> None:
    async def nested() -> object:
        return tq_store.tags()

    with pytest.raises(StoreError, match="wait for itself"):
        client._loop.run("nested", nested, 20, lambda: "")


def test_what_transfer_queue_raises_comes_out_in_our_words(client: QueueClient) -> None:
    with pytest.raises(StoreError, match="TransferQueue refused read_tags"):
        client.read_tags(GROUPS, [1])  # type: ignore[list-item]


def test_a_call_that_hangs_ends_at_its_deadline(store_host: StoreHost, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = QueueClient(store_host.endpoint, QUICK_S)

    async def hangs(*_: object, **__: object) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(hasty._client, "async_kv_list", hangs)
    with pytest.raises(DeadlineExceeded, match="TransferQueue list_tags") as caught:
        hasty.list_tags(GROUPS)
    assert QUICK_S <= caught.value.waited_s < 2 * QUICK_S
    assert store_host.endpoint.controller.ip in caught.value.state
    hasty.close()


def test_without_transfer_queue_the_message_names_both_ways_on(monkeypatch: pytest.MonkeyPatch) -> None:
    require_transfer_queue()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match="pip install TransferQueue==") as caught:
        require_transfer_queue()
    assert "trainer.use_v1=false" in str(caught.value)


def test_importing_the_package_imports_nothing_heavy(repo_root: Path) -> None:
    names = [f"verl_core.transfer.{path.stem}" for path in (repo_root / "verl_core/transfer").glob("*.py")]
    code = f"""
import importlib, sys
for name in {[name for name in names if not name.endswith("__")]!r}: importlib.import_module(name)
from verl_core.transfer.availability import require_transfer_queue
require_transfer_queue()
print(sorted({{"transfer_queue", "torch", "ray", "tensordict"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=repo_root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr

"""QueueClient: the only place that talks to TransferQueue. Invariant: every call ends within its deadline, and what
TransferQueue would pass over in silence (missing rows, unready fields, a refused notification) is a `StoreError`.

Calls run on one loop thread of our own, through the asynchronous client and its storage manager. The synchronous
client has no time-outs and deadlocks on its own loop; the `kv_*` functions start Ray by themselves and reset torch's
number of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from verl_core.errors import StoreError, VerlError
from verl_core.transfer.availability import installed_version, prepare_environment
from verl_core.transfer.endpoint import Address, Endpoint
from verl_core.transfer.loop_thread import LoopThread
from verl_core.transfer.row_units import FIELD, Blob, RowUnits

GROUPS, ROWS, META = "train.groups", "train.rows", "store.meta"
_EPOCH_KEY = "epoch"
T = TypeVar("T")
Places = dict[str, int]
Tags = Mapping[str, dict[str, Any]]


class QueueClient:
    """One process' connection to one store; usable from any of its threads.

    Args:
        endpoint: the store to join.
        call_timeout_s: deadline of each call.
        check_epoch: False only for the host, which has yet to write it.

    Raises:
        StoreError: nobody answers there, or another store does.
    """

    def __init__(self, endpoint: Endpoint, call_timeout_s: float, check_epoch: bool = True) -> None:
        if endpoint.version != installed_version():
            raise StoreError(
                f"the store runs TransferQueue {endpoint.version}, this process has {installed_version()}; its wire "
                "format is not stable between versions: install the same one on both sides"
            )
        self.endpoint, self.call_timeout_s = endpoint, call_timeout_s
        prepare_environment(call_timeout_s)
        self._client = _connect(endpoint)
        self._units = RowUnits(self._client, ROWS)
        self._loop = LoopThread("store-client")
        try:
            if check_epoch:
                self._check_epoch()
        except VerlError:
            self.close()
            raise

    def _check_epoch(self) -> None:
        found = self.read_tags(META, [_EPOCH_KEY]).get(_EPOCH_KEY, {}).get("epoch")
        if found != self.endpoint.epoch:
            raise StoreError(
                f"stale store endpoint: it names epoch {self.endpoint.epoch}, the one that answers has {found}; "
                "read the endpoint again from the run that is alive"
            )

    # ---- rows: one `bytes` value per key

    def commit(
        self, rows: Mapping[str, Blob], partition: str, keys: Sequence[str], tags_of: Callable[[Places], Tags]
    ) -> None:
        """Store rows, and only when they are readable, write the tags of `keys`: `tags_of` the rows' places."""
        if keys:
            self._call("commit", lambda: self._commit(rows, partition, list(keys), tags_of), lambda: _some(keys))

    async def _commit(
        self, rows: Mapping[str, Blob], partition: str, keys: list[str], tags_of: Callable[[Places], Tags]
    ) -> None:
        where = asyncio.create_task(self._client.async_kv_retrieve_meta(keys, partition, create=True))
        try:
            places = await self._put_rows(rows) if rows else {}
            tags = tags_of(places)
            await self._set_tags(await where, {key: tags[key] for key in keys})
        finally:
            where.cancel()

    def put_rows(self, rows: Mapping[str, Blob]) -> Places:
        """Store rows so that they are readable. Returns their places by key."""
        return self._call("put_rows", lambda: self._put_rows(rows), lambda: _some(rows)) if rows else {}

    async def _put_rows(self, rows: Mapping[str, Blob]) -> Places:
        meta = await self._client.async_kv_retrieve_meta(list(rows), ROWS, create=True)
        places = dict(zip(rows, meta.global_indexes, strict=True))
        await self._units.put(list(places.values()), list(rows.values()))
        return places

    async def _find_rows(self, keys: list[str]) -> list[int]:
        """The places of `keys`, all of them readable."""
        meta = await self._client.async_kv_retrieve_meta(keys, ROWS, create=False)
        if meta.size != len(keys):
            raise StoreError(
                f"rows of {len(keys) - meta.size} of {len(keys)} groups are missing: {await self._missing(keys, meta)}"
            )
        if FIELD not in meta.field_names or not meta.is_ready:
            raise StoreError(f"rows are listed but not readable (a write was lost or is going on) among {_some(keys)}")
        return list(meta.global_indexes)

    async def _missing(self, keys: list[str], meta: Any) -> str:
        """The keys TransferQueue left out without naming them."""
        there = await self._client.async_kv_retrieve_keys(meta.global_indexes, ROWS) if meta.size else []
        return _some([key for key in keys if key not in set(there)])

    def get_rows(self, keys: Sequence[str], places: Sequence[int] | None = None) -> list[bytes]:
        """Rows in the order of `keys`.

        Args:
            keys: of the rows.
            places: where they were put, as far as the caller knows: saves asking the controller. A place may have been
                given to another row since, so the caller checks whose bytes it got.

        Raises:
            StoreError: names what is missing.
        """
        if not keys:
            return []
        return self._call("get_rows", lambda: self._get_rows(list(keys), places), lambda: _some(keys))

    async def _get_rows(self, keys: list[str], places: Sequence[int] | None) -> list[bytes]:
        rows = None
        if places is not None:
            with contextlib.suppress(KeyError):  # gone, or moved: the controller knows
                rows = await self._units.get(places)
        if rows is None:
            rows = await self._units.get(await self._find_rows(keys))
        if len(rows) != len(keys) or not all(isinstance(row, bytes) for row in rows):
            raise StoreError(f"asked for {len(keys)} rows, got {len(rows)}, not all of them bytes: {_some(keys)}")
        return rows

    # ---- tags

    def write_tags(self, partition: str, tags: Mapping[str, dict[str, Any]]) -> None:
        """Write whole tags; nothing of an older tag survives."""
        if tags:
            self._call("write_tags", lambda: self._write_tags(partition, tags), lambda: _some(tags))

    async def _write_tags(self, partition: str, tags: Mapping[str, dict[str, Any]]) -> None:
        await self._set_tags(await self._client.async_kv_retrieve_meta(list(tags), partition, create=True), tags)

    async def _set_tags(self, meta: Any, tags: Mapping[str, dict[str, Any]]) -> None:
        meta.clear_custom_meta()  # the client would merge into what it just read
        meta.update_custom_meta(list(tags.values()))
        await self._client.async_set_custom_meta(meta)

    def read_tags(self, partition: str, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Tags by key; keys that are not there are left out."""
        if not keys:
            return {}
        return self._call("read_tags", lambda: self._read_tags(partition, list(keys)), lambda: _some(keys))

    async def _read_tags(self, partition: str, keys: list[str]) -> dict[str, dict[str, Any]]:
        meta = await self._client.async_kv_retrieve_meta(keys, partition, create=False)
        if meta.size < len(keys):
            there = await self._client.async_kv_retrieve_keys(meta.global_indexes, partition) if meta.size else []
            keys = list(there)
        return dict(zip(keys, meta.custom_meta, strict=True))

    def list_tags(self, partition: str) -> dict[str, dict[str, Any]]:
        """All keys of a partition with their tags; linear in their number."""
        found = self._call("list_tags", lambda: self._client.async_kv_list(partition), lambda: partition)
        return dict(found.get(partition, {}))

    # ---- both

    def clear(self, partition: str, keys: Sequence[str]) -> None:
        """Forget keys; those that are not there are no error."""
        if keys:
            self._call("clear", lambda: self._clear(partition, list(keys)), lambda: _some(keys))

    async def _clear(self, partition: str, keys: list[str]) -> None:
        meta = await self._client.async_kv_retrieve_meta(keys, partition, create=False)
        if meta.size:
            await self._client.async_clear_samples(meta)

    def clear_partition(self, partition: str) -> None:
        """Forget a whole partition."""
        self._call("clear_partition", lambda: self._clear_partition(partition), lambda: partition)

    async def _clear_partition(self, partition: str) -> None:
        if partition in await self._client.async_get_partition_list():
            await self._client.async_clear_partition(partition)

    def write_epoch(self) -> None:
        """Put the endpoint's epoch inside the store. Host only."""
        self.write_tags(META, {_EPOCH_KEY: {"epoch": self.endpoint.epoch}})

    def close(self) -> None:
        """Leave; the store and its other users do not notice. Idempotent."""
        if self._loop.close():  # sockets must not be closed under a running loop
            self._client.close()

    def _call(self, name: str, work: Callable[[], Awaitable[T]], about: Callable[[], str]) -> T:
        """Run `work` on the loop thread, within the deadline, with its errors in our words."""

        def state() -> str:
            where = self.endpoint.controller
            address = f"{where.ip}:{where.ports.get('request_handle_socket')}"
            return f"{name} of {about()}; controller {where.id} at {address}; it or a storage unit may be dead"

        try:
            return self._loop.run(f"TransferQueue {name}", work, self.call_timeout_s, state)
        except VerlError:
            raise
        except Exception as error:  # TransferQueue raises whatever it likes
            raise StoreError(f"TransferQueue refused {name} of {about()}: {type(error).__name__}: {error}") from error


def _connect(endpoint: Endpoint) -> Any:
    """TransferQueue's asynchronous client, its storage units registered in routing order; no Ray involved."""
    from transfer_queue.client import AsyncTransferQueueClient
    from transfer_queue.utils.enum_utils import Role
    from transfer_queue.utils.zmq_utils import ZMQServerInfo

    def server(role: Role, address: Address) -> ZMQServerInfo:
        return ZMQServerInfo(role=role, id=address.id, ip=address.ip, ports=dict(address.ports))

    name = f"verl_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    client = AsyncTransferQueueClient(name, server(Role.CONTROLLER, endpoint.controller))
    units = {f"unit-{number}": server(Role.STORAGE, unit) for number, unit in enumerate(endpoint.units)}
    try:
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": units})
    except TimeoutError as error:
        client.close()
        where = endpoint.controller
        raise StoreError(
            f"no store answers at {where.ip}:{where.ports.get('handshake_socket')}: the endpoint is stale or the "
            f"run's store is gone ({error})"
        ) from error
    return client


def _some(keys: Mapping[str, Any] | Sequence[str]) -> str:
    """A few of `keys`, for messages."""
    names = [str(key) for key in keys]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

"""RowUnits: values in the storage units, by place. Invariant: `put` returns only after every unit has acknowledged its
values and the controller has said that it counts them as readable; a doubt is a `StoreError`.

A place is TransferQueue's index of a value; it alone decides which unit holds it, so that a reader who was told the
place needs the units only. TransferQueue's own `put_data` and `get_data` do the same with more: it hands the
notification to a thread of its own and only logs when the controller refuses it or does not answer, and wraps what it
read in a TensorDict. We call the requests below them (all versions are checked when a store is joined).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from verl_core.errors import StoreError

FIELD = "blob"
Blob = bytes | bytearray
_SCHEMA = {FIELD: {"dtype": None, "shape": None, "is_nested": False, "is_non_tensor": True}}


class RowUnits:
    """To be used on one event loop.

    Args:
        client: TransferQueue's asynchronous client, its storage manager initialized.
        partition: where the rows' keys are.
    """

    def __init__(self, client: Any, partition: str) -> None:
        self._client, self._manager, self._partition = client, client.storage_manager, partition

    async def put(self, places: Sequence[int], values: Sequence[Blob]) -> None:
        """Store each value at its place.

        Raises:
            StoreError: the controller does not count the values as readable.
        """

        def request(unit: str, indexes: list[int], where: list[int]) -> Any:
            mine = {FIELD: [values[at] for at in where]}
            return self._manager._put_to_single_storage_unit(indexes, mine, target_storage_unit=unit)

        await self._ask_units("put", places, request)
        await self._announce(places)

    async def get(self, places: Sequence[int]) -> list[Any]:
        """What is at each place: a group's rows, or anything else that was put there since; only a check of the value
        itself tells.

        Raises:
            KeyError: nothing is at one of them.
        """

        def request(unit: str, indexes: list[int], where: list[int]) -> Any:
            return self._manager._get_from_single_storage_unit(indexes, [FIELD], target_storage_unit=unit)

        found: dict[int, Any] = {}
        for where, (_, data) in await self._ask_units("get", places, request):
            found.update(zip(where, data[FIELD], strict=True))
        return [found[at] for at in range(len(places))]

    async def _ask_units(
        self, name: str, places: Sequence[int], request: Callable[[str, list[int], list[int]], Any]
    ) -> list[tuple[list[int], Any]]:
        """Send each unit its part, all at once; the positions of each part, with its answer. A lost request is sent
        again on a new connection, as TransferQueue does."""
        routes: Mapping[str, Any] = self._manager._group_by_hash(list(places))
        answers = await asyncio.gather(
            *[
                self._manager._request_with_retry(
                    name, unit, f"rows={len(route.global_indexes)}", partial(request, unit, *route)
                )
                for unit, route in routes.items()
            ]
        )
        return [(route.batch_positions, answer) for route, answer in zip(routes.values(), answers, strict=True)]

    async def _announce(self, places: Sequence[int]) -> None:
        """Have the controller count the values as readable; for readers that do not know the places."""
        from transfer_queue.utils.zmq_utils import ZMQRequestType

        body = {
            "partition_id": self._partition,
            "global_indexes": list(places),
            "field_schema": _SCHEMA,
            "custom_backend_meta": None,
        }
        async with self._client.controller_rpc_pool.alease(self._client._controller) as socket:
            reply = await self._client._request_controller(
                socket, ZMQRequestType.NOTIFY_DATA_UPDATE, ZMQRequestType.NOTIFY_DATA_UPDATE_ACK, body
            )
        if not reply.body.get("success"):
            raise StoreError(f"the controller does not count the rows at {list(places)[:5]} as readable: {reply.body}")

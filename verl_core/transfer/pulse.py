"""Pulse: whether the store's processes live. Invariant: a waiting trainer learns within seconds which one is dead.

A dead storage unit is not seen otherwise: the controller goes on listing groups, and what workers want to finish fails
on their side. Each server is asked for a TCP connection, which a live one grants whatever it is busy with.
"""

from __future__ import annotations

import socket
import time

from verl_core.errors import StoreError
from verl_core.transfer.endpoint import Address, Endpoint
from verl_core.transfer.interface import TrajectoryStore
from verl_core.transfer.tq_store import TransferQueueStore

_EVERY_S = 3.0
_CONNECT_S = 2.0
_MISSES = 3  # without an answer at all; a refusal is final, since a store's process is never started again


class Pulse:
    """Args:
    endpoint: of the store.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        units = {f"storage unit {number}": unit for number, unit in enumerate(endpoint.units)}
        self._servers = {"controller": endpoint.controller, **units}
        self._misses = dict.fromkeys(self._servers, 0)
        self._next = 0.0

    def check(self) -> None:
        """Ask them all, at most every few seconds. Raises StoreError when one is dead."""
        if time.monotonic() < self._next:
            return
        for name, address in self._servers.items():
            self._ask(name, address)
        self._next = time.monotonic() + _EVERY_S

    def _ask(self, name: str, address: Address) -> None:
        where = (address.ip, next(iter(address.ports.values())))
        try:
            socket.create_connection(where, timeout=_CONNECT_S).close()
            self._misses[name] = 0
        except ConnectionRefusedError as error:
            raise self._dead(name, where, error) from error
        except OSError as error:
            self._misses[name] += 1
            if self._misses[name] >= _MISSES:
                raise self._dead(name, where, error) from error

    @staticmethod
    def _dead(name: str, where: tuple[str, int], error: OSError) -> StoreError:
        return StoreError(
            f"the trajectory store's {name} at {where[0]}:{where[1]} is dead ({error}). What it held is lost; finished "
            "groups are in the run directory. See its log for the reason, then run again: the run goes on from there"
        )


def pulse_of(store: TrajectoryStore) -> Pulse | None:
    """None for a store without processes of its own."""
    return Pulse(store.endpoint) if isinstance(store, TransferQueueStore) else None

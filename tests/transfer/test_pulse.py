"""The pulse against sockets that listen, do not, or never answer."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from verl_core.errors import StoreError
from verl_core.transfer import pulse
from verl_core.transfer.endpoint import Address, Endpoint
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.pulse import Pulse, pulse_of


def listener() -> tuple[socket.socket, Address]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, Address("id", "127.0.0.1", {"request": server.getsockname()[1]})


def endpoint_of(controller: Address, *units: Address) -> Endpoint:
    return Endpoint("epoch", "version", controller, units, "in", "out")


@pytest.mark.parametrize(("number", "name"), [(0, "controller"), (1, "storage unit 0"), (2, "storage unit 1")])
def test_the_one_that_refuses_is_named(number: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_EVERY_S", 0.0)
    servers = [listener() for _ in range(3)]
    watcher = Pulse(endpoint_of(*[address for _, address in servers]))
    watcher.check()
    watcher.check()
    servers[number][0].close()
    with pytest.raises(StoreError, match=f"{name} at 127.0.0.1:{servers[number][1].ports['request']} is dead"):
        watcher.check()
    for server, _ in servers:
        server.close()


def test_silence_is_believed_the_third_time_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_EVERY_S", 0.0)
    server, address = listener()
    watcher = Pulse(endpoint_of(address))
    real = socket.create_connection

    def silent(*_: object, **__: object) -> socket.socket:
        raise TimeoutError("timed out")

    def check_with(connect: Callable[..., socket.socket]) -> None:
        monkeypatch.setattr(socket, "create_connection", connect)
        watcher.check()

    for connect in (silent, silent, real, silent, silent):
        check_with(connect)
    with pytest.raises(StoreError, match=r"controller at .* is dead .timed out."):
        check_with(silent)
    server.close()


def test_they_are_asked_now_and_then_only() -> None:
    server, address = listener()
    watcher = Pulse(endpoint_of(address))
    watcher.check()
    server.close()
    watcher.check()  # within the same few seconds


def test_a_store_of_one_process_has_no_pulse() -> None:
    assert pulse_of(MemoryStore()) is None

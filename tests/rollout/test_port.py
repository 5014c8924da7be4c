"""Commands to a rollout side in another cluster: answers, errors as they were raised, strangers, and silence."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from verl_core.config.schema import RunConfig
from verl_core.errors import DeadlineExceeded, EngineDead, RolloutError, StreamFailed
from verl_core.rollout.port import PortAddress, PortClient, PortServer
from verl_core.rollout.remote import COMMANDS, RemoteAgents, RemoteServers
from verl_core.rollout.servers import Servers
from verl_core.rollout.usage import ServerUsage
from verl_core.weights.interface import WeightManifest

MANIFEST = WeightManifest(4, "store", "somewhere", (), ())


class Side:
    """Stands for Servers and the agent manager: remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.leave = threading.Event()

    def version(self) -> int:
        return 3

    def usage(self) -> dict[str, ServerUsage]:
        return {"server-0": ServerUsage("life", tokens=5)}

    def update_weights(self, manifest: WeightManifest) -> None:
        self.told.append(("update_weights", manifest))

    def begin_update(self, manifest: WeightManifest) -> None:
        self.told.append(("begin_update", manifest))

    def settle(self) -> None:
        self.told.append(("settle",))

    def sleep(self, level: int, abort: bool) -> None:
        self.told.append(("sleep", level, abort))

    def dispatch(self, prompts: list[object]) -> None:
        self.told.append(("dispatch", prompts))

    def reset(self) -> None:
        raise DeadlineExceeded("the agent workers to reset", 60.0, "agent-0: running 3")

    def health(self) -> None:
        raise EngineDead("server-0 is gone for good")

    def states(self) -> dict[str, str]:
        raise KeyError("a bug")

    def abort(self) -> int:
        self.leave.wait(20)
        return 7

    def shutdown(self) -> None:
        raise AssertionError("not a command")


@pytest.fixture
def side() -> Side:
    return Side()


@pytest.fixture
def address(side: Side) -> Iterator[PortAddress]:
    commands = {*COMMANDS, "servers.missing"} - {"servers.gate"}
    with PortServer({"servers": side, "agents": side}, commands, "127.0.0.1") as server:
        yield server.address
        side.leave.set()


@pytest.fixture
def servers(address: PortAddress) -> RemoteServers:
    return RemoteServers(RunConfig(), PortClient(address))


def test_commands_reach_the_side_and_answers_come_back(address: PortAddress, side: Side) -> None:
    client = PortClient(address)
    servers, agents = RemoteServers(RunConfig(), client), RemoteAgents(client)
    assert servers.version() == 3
    assert servers.usage() == {"server-0": ServerUsage("life", tokens=5)}
    servers.begin_update(MANIFEST)
    assert servers.under_way == 4
    servers.settle()
    assert servers.under_way is None
    servers.update_weights(MANIFEST)
    servers.sleep()
    agents.dispatch(["prompt"])  # type: ignore[list-item]
    agents.set_servers({})
    servers.shutdown()
    agents.shutdown()
    agents.shutdown()
    assert side.told == [
        ("begin_update", MANIFEST),
        ("settle",),
        ("update_weights", MANIFEST),
        ("sleep", 1, True),
        ("dispatch", ["prompt"]),
    ]
    assert servers.version() == 3  # it dials again


def test_every_command_that_servers_have_is_carried() -> None:
    """Nothing that Servers does with handles may be left: there are none."""
    local = {"attach_or_launch", "part", "transfer_servers", "state", "shutdown"}
    public = {name for name, value in vars(Servers).items() if not name.startswith("_") and callable(value)}
    assert public - local - {"attach_or_launch"} == {
        name.removeprefix("servers.") for name in COMMANDS if name.startswith("servers.")
    }
    assert public - local <= set(vars(RemoteServers))


def test_errors_arrive_as_they_were_raised(address: PortAddress, servers: RemoteServers) -> None:
    with pytest.raises(EngineDead, match="server-0 is gone for good"):
        servers.health()
    with pytest.raises(DeadlineExceeded, match=r"waited 60.0 s for the agent workers to reset.*running 3"):
        RemoteAgents(PortClient(address)).reset()
    with pytest.raises(RolloutError, match="KeyError: 'a bug'"):
        servers.states()
    with pytest.raises(RolloutError, match=r"no command 'servers.gate'"):
        servers.gate("open")
    with pytest.raises(RolloutError, match="has no attribute 'missing'"):
        PortClient(address).call("servers.missing", seconds=5)


def test_a_command_that_hangs_ends_at_its_deadline_and_its_late_answer_is_nobodys(
    address: PortAddress, side: Side
) -> None:
    client = PortClient(address)
    with pytest.raises(DeadlineExceeded, match=r"rollout side to answer servers.abort.*asked at tcp://127.0.0.1"):
        client.call("servers.abort", seconds=0.3)
    side.leave.set()
    assert client.call("servers.version", seconds=20) == 3


def test_a_wait_ends_when_the_side_is_known_to_be_gone(address: PortAddress) -> None:
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.3:
            raise StreamFailed("the rollout side fell silent")

    with pytest.raises(StreamFailed):
        PortClient(address, check).call("servers.abort", seconds=60)
    assert time.monotonic() - began < 10


def test_nobody_at_the_port_is_a_named_deadline() -> None:
    client = PortClient(PortAddress("tcp://127.0.0.1:9", "00" * 16))
    with pytest.raises(DeadlineExceeded, match=r"rollout side to answer servers.version"):
        client.call("servers.version", seconds=0.5)


class Bomb:
    """Unpickling it leaves a trace."""

    gone_off = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return _go_off, ()


def _go_off() -> None:
    Bomb.gone_off = True


@pytest.mark.parametrize(
    "frames", [[b"", pickle.dumps(Bomb())], [pickle.dumps(Bomb())], [b"x" * 32, pickle.dumps(Bomb())]]
)
def test_a_stranger_is_told_nothing_and_not_listened_to(address: PortAddress, frames: list[bytes]) -> None:
    with zmq.Context.instance().socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address.url)
        socket.send_multipart(frames)
        assert socket.poll(10_000)
        assert socket.recv_multipart() == [b""]
    assert not Bomb.gone_off
    with pytest.raises(RolloutError, match="lacks the run's signature"):
        PortClient(PortAddress(address.url, "00" * 16)).call("servers.version", seconds=10)

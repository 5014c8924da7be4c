"""StoreHost: the processes behind a store. Invariant: they are named, detached actors of the run's own namespace:
they outlive the driver that started them, no other job meets them, and only `shutdown` ends them.

TransferQueue's own `init` is not used: its actors die with their creator, its names are the same for every job of a
Ray cluster, any joiner's `close` kills them for all, and it hangs without a word when the cluster has few CPUs. Its
classes are used as they are, each inside an actor of ours that asks for no CPU. The wire is pickle over plain TCP:
keep it on a private network."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_core.config.schema import BufferConfig
from verl_core.deadline import Deadline
from verl_core.errors import DeadlineExceeded, StoreError
from verl_core.transfer.availability import installed_version, prepare_environment
from verl_core.transfer.client import QueueClient
from verl_core.transfer.doorbell import Forwarder
from verl_core.transfer.endpoint import Address, Endpoint

CONTROLLER = "store-controller"
_PROBE_S = 10.0  # a live actor answers at once


class _ServerInfo(Protocol):
    """What TransferQueue calls ZMQServerInfo."""

    id: str
    ip: str
    ports: dict[str, int]


def unit_name(number: int) -> str:
    """Actor name of storage unit `number`."""
    return f"store-unit-{number}"


def _address(info: _ServerInfo) -> Address:
    return Address(id=info.id, ip=info.ip, ports=dict(info.ports))


class StoreController:
    """Actor: TransferQueue's controller, and the doorbell beside it."""

    def __init__(self, bind_ip: str, call_timeout_s: float) -> None:
        prepare_environment(call_timeout_s)
        import transfer_queue.controller as module

        if bind_ip:
            module.get_node_ip_address = lambda: bind_ip
        plain = module.TransferQueueController.__ray_metadata__.modified_class
        # Without polling_mode a reader that asks too early puts the only request thread to sleep, for everybody.
        self._controller = plain(polling_mode=True)
        self._where = _address(self._controller.get_zmq_server_info())
        self._bell = Forwarder(self._where.ip)
        self._call_timeout_s = call_timeout_s
        self._endpoint: Endpoint | None = None

    def open(self, units: Sequence[Address]) -> Endpoint:
        """Tie controller and units together: write the epoch through a client of our own, then name the endpoint."""
        endpoint = Endpoint(
            epoch=uuid.uuid4().hex,
            version=installed_version(),
            controller=self._where,
            units=tuple(units),
            bell_in=self._bell.bell_in,
            bell_out=self._bell.bell_out,
        )
        client = QueueClient(endpoint, self._call_timeout_s, check_epoch=False)
        client.write_epoch()
        client.close()
        self._endpoint = endpoint
        return endpoint

    def endpoint(self) -> Endpoint | None:
        """None until `open` is done."""
        return self._endpoint


class StoreUnit:
    """Actor: one of TransferQueue's storage units. No capacity is set: a full unit refuses rows by the parity of their
    index, and how much may be in flight is the replay buffer's business."""

    def __init__(self, bind_ip: str, call_timeout_s: float) -> None:
        prepare_environment(call_timeout_s)
        import transfer_queue.storage.simple_storage as module

        if bind_ip:
            module.get_node_ip_address = lambda: bind_ip
        plain = module.SimpleStorageUnit.__ray_metadata__.modified_class
        self._unit = plain({"num_data_storage_units": 1, "total_storage_size": None})

    def address(self) -> Address:
        """Where it serves; an answer proves that the process lives."""
        return _address(self._unit.get_zmq_server_info())


@dataclass(frozen=True)
class StoreHost:
    """Handle on the actors of one store.

    Attributes:
        endpoint: for joiners.
        namespace: Ray namespace of the actors.
    """

    endpoint: Endpoint
    namespace: str

    @classmethod
    def attach_or_launch(
        cls, config: BufferConfig, timeout_s: float, namespace: str | None = None, bind_ip: str = ""
    ) -> StoreHost:
        """The store of this namespace: the running one if all its actors answer, else a new one with a new epoch.

        Args:
            timeout_s: budget for the actors to come up.
            namespace: None = that of this process' Ray connection.
            bind_ip: IP the servers bind; empty = that of the node.

        Raises:
            StoreError: TransferQueue is missing or Ray is not connected.
            DeadlineExceeded: the actors did not come up.
        """
        import ray

        installed_version()
        if not ray.is_initialized():
            raise StoreError("the store needs a Ray connection: call ray.init first")
        space = namespace or ray.get_runtime_context().namespace
        endpoint = _running(space)
        if endpoint is None:
            deadline = Deadline("the trajectory store to start", timeout_s, lambda: _picture(space))
            _kill(space, deadline)
            try:
                endpoint = _launch(space, config, bind_ip, deadline)
            except (StoreError, DeadlineExceeded):
                cls.remove(space)
                raise
        return cls(endpoint, space)

    @staticmethod
    def remove(namespace: str, timeout_s: float = 30.0) -> None:
        """End whatever store lives in `namespace`. Idempotent."""
        _kill(namespace, Deadline("the trajectory store to end", timeout_s, lambda: _picture(namespace)))

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """End the store for everybody. Idempotent."""
        self.remove(self.namespace, timeout_s)


def _actors(namespace: str) -> dict[str, Any]:
    """Handles of the store's actors in `namespace`, by name."""
    import ray

    listed = [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == namespace]
    names = [entry["name"] for entry in listed if entry["name"].startswith("store-")]
    found = {}
    for name in names:
        try:
            found[name] = ray.get_actor(name, namespace=namespace)
        except ValueError:  # it ended since it was listed
            continue
    return found


def _running(namespace: str) -> Endpoint | None:
    """Endpoint of a store all of whose actors answer; None when there is none or it is broken (it has no replicas)."""
    import ray

    actors = _actors(namespace)
    if CONTROLLER not in actors:
        return None
    try:
        endpoint: Endpoint | None = ray.get(actors[CONTROLLER].endpoint.remote(), timeout=_PROBE_S)
        if endpoint is None:
            return None
        units = [actors[unit_name(number)] for number in range(len(endpoint.units))]
        ray.get([unit.address.remote() for unit in units], timeout=_PROBE_S)
    except (KeyError, ray.exceptions.RayError):
        return None
    return endpoint


def _launch(namespace: str, config: BufferConfig, bind_ip: str, deadline: Deadline) -> Endpoint:
    import ray

    def start(name: str, cls: type) -> Any:
        options = {"name": name, "namespace": namespace, "lifetime": "detached", "num_cpus": 0, "max_restarts": 0}
        return ray.remote(cls).options(**options).remote(bind_ip, config.call_timeout_s)

    controller = start(CONTROLLER, StoreController)
    units = [start(unit_name(number), StoreUnit) for number in range(config.num_storage_units)]
    try:
        addresses = ray.get([unit.address.remote() for unit in units], timeout=deadline.left)
        endpoint: Endpoint = ray.get(controller.open.remote(addresses), timeout=deadline.left)
    except ray.exceptions.GetTimeoutError as error:
        raise deadline.expired() from error
    except ray.exceptions.RayError as error:
        raise StoreError(f"the trajectory store did not start: {error}") from error
    return endpoint


def _kill(namespace: str, deadline: Deadline) -> None:
    """Kill every actor of the store and wait until its name is free again."""
    import ray

    while actors := _actors(namespace):
        for actor in actors.values():
            ray.kill(actor)
        deadline.check()
        time.sleep(0.1)


def _picture(namespace: str) -> str:
    """What Ray says about the store, for a message."""
    import ray

    try:
        nodes = sum(bool(node.get("Alive")) for node in ray.nodes())
        return f"namespace {namespace}, actors there: {sorted(_actors(namespace)) or 'none'}, live Ray nodes: {nodes}"
    except (ray.exceptions.RayError, DeadlineExceeded) as error:
        return f"Ray itself does not answer: {error}"

"""Doorbell: wakes the sampler when a group settled. Invariant: a ring may be lost or doubled and nothing breaks; it
never blocks.

Publishers push uids to a forwarder that lives beside the controller; it broadcasts them to whoever listens. ZeroMQ's
own queues bound the memory: at the limit rings are dropped, and the sampler's slow poll finds what was missed."""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections.abc import Sequence

import zmq

from verl_core.errors import StoreError

_SEPARATOR = b"\n"
_HELLO = b"?"
_QUEUE = 100_000  # rings kept for a listener that is busy training
_LINGER_MS = 500


class Forwarder:
    """Host side: everything pushed to `bell_in` goes out at `bell_out`, in its own thread."""

    def __init__(self, ip: str) -> None:
        self._context = zmq.Context()
        self._pull, self._pub = self._context.socket(zmq.PULL), self._context.socket(zmq.PUB)
        self._pub.set_hwm(_QUEUE)
        host = f"[{ip}]" if ":" in ip else ip
        for socket in (self._pull, self._pub):
            socket.setsockopt(zmq.IPV6, int(":" in ip))
        self.bell_in = f"tcp://{host}:{self._pull.bind_to_random_port(f'tcp://{host}')}"
        self.bell_out = f"tcp://{host}:{self._pub.bind_to_random_port(f'tcp://{host}')}"
        self._thread = threading.Thread(target=self._run, name="store-doorbell", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            zmq.proxy(self._pull, self._pub)
        except zmq.ContextTerminated:
            pass
        finally:
            self._pull.close(0)
            self._pub.close(0)

    def close(self) -> None:
        """Stop forwarding."""
        self._context.term()
        self._thread.join(timeout=5)


class Doorbell:
    """Client side; usable from any thread of the process that made it.

    Args:
        listen: subscribe as well; only the sampler needs it.
    """

    def __init__(self, bell_in: str, bell_out: str, listen: bool) -> None:
        self._context, self._pid = zmq.Context(), os.getpid()
        self._ring_lock, self._wait_lock = threading.Lock(), threading.Lock()
        self._push = self._connect(zmq.PUSH, bell_in)
        self._sub: zmq.Socket[bytes] | None = None
        if listen:
            self._sub = self._connect(zmq.SUB, bell_out)
            self._sub.setsockopt(zmq.SUBSCRIBE, b"")

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.setsockopt(zmq.IPV6, int("[" in address))
        socket.set_hwm(_QUEUE)
        socket.connect(address)
        return socket

    def ring(self, uids: Sequence[str]) -> bool:
        """Tell listeners of `uids`; False when the ring was dropped because nobody takes rings any more."""
        self._check_owner()
        with self._ring_lock:
            try:
                self._push.send(_SEPARATOR.join(uid.encode() for uid in uids), zmq.NOBLOCK)
            except zmq.Again:
                return False
        return True

    def wait(self, timeout_s: float) -> list[str]:
        """Uids rung since the last call, oldest first, each once; waits up to `timeout_s` for the first."""
        self._check_owner()
        with self._wait_lock:
            rung: dict[str, None] = {}
            deadline = time.monotonic() + timeout_s
            while not rung and (messages := self._receive(max(0.0, deadline - time.monotonic()))):
                for message in messages:
                    if not message.startswith(_HELLO):
                        rung.update(dict.fromkeys(message.decode().split("\n")))
            return list(rung)

    def answers(self, timeout_s: float) -> bool:
        """Whether a ring of this process comes back within `timeout_s`: the subscription stands from then on."""
        hello = _HELLO + uuid.uuid4().hex.encode()
        deadline = time.monotonic() + timeout_s
        with self._wait_lock:
            while time.monotonic() < deadline:
                with self._ring_lock:
                    self._push.send(hello)
                if hello in self._receive(0.05):
                    return True
        return False

    def _receive(self, timeout_s: float) -> list[bytes]:
        """Every message that is here, waiting for the first; empty when the time is up."""
        if self._sub is None or not self._sub.poll(math.ceil(timeout_s * 1000)):
            return []
        messages = []
        while self._sub.poll(0):
            messages.append(self._sub.recv())
        return messages

    def _check_owner(self) -> None:
        if self._pid != os.getpid():
            raise StoreError("this doorbell belongs to the parent of this fork; join the store again in the child")

    def close(self) -> None:
        """Hand over what was rung (for up to half a second), then leave. Idempotent."""
        if self._context.closed or self._pid != os.getpid():
            return
        with self._ring_lock, self._wait_lock:
            self._push.close()
            if self._sub is not None:
                self._sub.close(0)
            self._context.term()

"""Port: commands from the trainer's process to a rollout side that lives in another Ray cluster.

One request at a time over ZeroMQ: a name such as `servers.version`, arguments, an answer or an error. Both ways carry a
signature under a token that only the run's storage knows; nothing is unpickled before it was verified. The content is
not encrypted: keep it on a private network, as the store's.

Invariant: every call ends, with the answer, with the error that was raised on the other side, or with a named one.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import zmq

from verl_core.deadline import Deadline
from verl_core.errors import RolloutError, VerlError

_POLL_MS = 200
_CLOSE_S = 5.0


@dataclass(frozen=True)
class PortAddress:
    """Where a port listens, and the token (hex) that signs what is said there."""

    url: str
    token: str

    def to_dict(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


class PortServer:
    """Answers in a thread of its own, while entered.

    Args:
        targets: what commands are for, by the first part of their names.
        allowed: the commands that exist.
        ip: of the interface to listen on; the port is a free one.
    """

    def __init__(self, targets: Mapping[str, Any], allowed: Collection[str], ip: str) -> None:
        self._targets, self._allowed = dict(targets), frozenset(allowed)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        port: int = self._socket.bind_to_random_port(f"tcp://{ip}")
        self.address = PortAddress(f"tcp://{ip}:{port}", secrets.token_hex(16))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="rollout-port")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A command that still runs is left behind: nobody waits for it any more."""
        self._end.set()
        self._thread.join(_CLOSE_S)

    def _serve(self) -> None:
        while not self._end.is_set():
            if self._socket.poll(_POLL_MS):
                self._socket.send_multipart(self._reply(self._socket.recv_multipart()))
        self._socket.close()

    def _reply(self, frames: list[bytes]) -> list[bytes]:
        try:
            request = _opened(frames, self.address.token)
        except RolloutError:
            return [b""]  # a stranger: told nothing
        try:
            return _signed((True, self._run(*request)), self.address.token)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the caller's
            return _signed((False, _portable(error)), self.address.token)

    def _run(self, command: str, arguments: tuple[Any, ...]) -> Any:
        if command not in self._allowed:
            raise RolloutError(f"the port has no command {command!r}; both sides must run the same version")
        target, _, method = command.partition(".")
        return getattr(self._targets[target], method)(*arguments)


class PortClient:
    """The trainer's end; usable from any thread, one call at a time.

    Args:
        address: as the rollout side offered it.
        check: called while an answer is waited for; raises when the other side is known to be gone.
    """

    def __init__(self, address: PortAddress, check: Callable[[], None] = lambda: None) -> None:
        self._address, self._check = address, check
        self._lock = threading.Lock()
        self._socket: zmq.Socket[bytes] | None = None

    def call(self, command: str, *arguments: Any, seconds: float) -> Any:
        """The command's answer.

        Raises:
            DeadlineExceeded: no answer within `seconds`. Whether the command was done is not known.
            RolloutError: the answer is not from the side that offered this port.
            VerlError: what the command raised there.
        """
        deadline = Deadline(f"the rollout side to answer {command}", seconds, lambda: f"asked at {self._address.url}")
        with self._lock:
            try:
                frames = self._ask(_signed((command, arguments), self._address.token), deadline)
                done, answer = _opened(frames, self._address.token)
            except BaseException:
                self._hang_up()  # a late answer must not be taken for that of the next call
                raise
        if not done:
            raise answer
        return answer

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._hang_up()

    def _ask(self, frames: list[bytes], deadline: Deadline) -> list[bytes]:
        if self._socket is None:
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.connect(self._address.url)
        self._socket.send_multipart(frames)
        while not self._socket.poll(_POLL_MS):
            self._check()
            deadline.check()
        return self._socket.recv_multipart()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _signature(token: str, data: bytes) -> bytes:
    return hmac.new(bytes.fromhex(token), data, hashlib.sha256).digest()


def _signed(value: Any, token: str) -> list[bytes]:
    data = pickle.dumps(value)
    return [_signature(token, data), data]


def _opened(frames: list[bytes], token: str) -> Any:
    """The value. Raises RolloutError unless it was signed with the token."""
    if len(frames) != 2 or not hmac.compare_digest(frames[0], _signature(token, frames[1])):
        raise RolloutError("a message at the rollout port lacks the run's signature; is it another run's port?")
    return pickle.loads(frames[1])


def _portable(error: Exception) -> Exception:
    """The error as it may travel: our own as they are, others in words."""
    if isinstance(error, VerlError):
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return error
    return RolloutError(f"{type(error).__name__}: {error}")

"""One end of the socket to a reward process. Invariant: no read or write blocks longer than the limit set last."""

from __future__ import annotations

import os
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any


class Silence(Exception):
    """The other side said nothing, or took nothing in, within the limit."""


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """Pickled messages over a stream socket, with a time limit kept by the kernel: no call of select per message."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._connection = Connection(os.dup(end.fileno()))

    def limit(self, seconds: float) -> None:
        """Bound every following read and write of a message's parts."""
        whole = int(seconds)
        budget = struct.pack("ll", whole, max(1, int((seconds - whole) * 1e6)))  # all zero would mean no limit
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, budget)

    def send(self, message: object) -> None:
        """Send, or raise `Silence` or `Closed`."""
        try:
            self._connection.send(message)
        except BlockingIOError as error:
            raise Silence from error
        except OSError as error:
            raise Closed from error

    def receive(self) -> Any:
        """The next message, or raise `Silence` or `Closed`."""
        try:
            return self._connection.recv()
        except BlockingIOError as error:
            raise Silence from error
        except (EOFError, OSError) as error:
            raise Closed from error

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
        self._socket.close()

"""OwnerLock: one live run per run directory. Invariant: two runs never hold one directory; a dead owner's lock is free.

On a local disk the kernel keeps the lock (flock) and drops it with the process. On an object store it is a lease: an
object that its owner renews and that is free once it was not renewed for `LEASE_S`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from verl_core.errors import RecordError
from verl_core.record import disk
from verl_core.record.canonical import compact
from verl_core.record.rundir import RunDir
from verl_core.record.storage import Storage

NAME = ".owner"
LEASE_S = 90.0
RENEW_S = 20.0
SETTLE_S = 2.0  # far more than a claimant needs from reading an expired lease to removing it
_TRIES = 5

_log = logging.getLogger(__name__)


class OwnerLock:
    """Held until `release` or the end of the process. Use `acquire`.

    Attributes:
        owner: who the directory belongs to now.
        holder: False when another process of the same owner holds it and this one only joined.
    """

    def __init__(self, owner: str, descriptor: int = -1, lease: Lease | None = None) -> None:
        self.owner, self._descriptor, self._lease = owner, descriptor, lease

    @property
    def holder(self) -> bool:
        return self._descriptor >= 0 or self._lease is not None

    @classmethod
    def acquire(cls, rundir: RunDir, owner: str | None = None) -> OwnerLock:
        """Take the directory, and sweep what a dead owner left half-written.

        Args:
            owner: name of the run that asks (a Flyte execution id); its other processes may join. None = nobody may.

        Raises:
            RecordError: another live run holds it; says who, where and since when.
        """
        claim = _claim(owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
        if rundir.local is None:
            lease = Lease.take(rundir.storage, rundir.root, claim)
            return cls(claim["owner"], lease=lease)
        lock = cls(claim["owner"], _flock(rundir.local, rundir.root, claim))
        if lock.holder:
            rundir.sweep()
        return lock

    def check(self) -> None:
        """Raise RecordError if the lease was lost meanwhile (object stores: this machine stood still for too long)."""
        if self._lease is not None:
            self._lease.check()

    def release(self) -> None:
        """Let the directory go. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Lease:
    """A renewed object on a store without locks."""

    def __init__(self, storage: Storage, root: str, claim: dict[str, Any]) -> None:
        self._storage, self._root, self._claim = storage, root, claim
        self._stop, self._lost_to = threading.Event(), ""
        self._thread = threading.Thread(target=self._keep, name="run-lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, storage: Storage, root: str, claim: dict[str, Any]) -> Lease | None:
        """None when another process of the same owner holds it. Raises RecordError when somebody else does.

        Stores have no compare-and-swap: two that saw the same expired lease may both remove one, the later one the
        new lease of the earlier. So whoever removed waits a moment and holds only what is then still its own.
        """
        removed = False
        for _ in range(_TRIES):
            if storage.create(NAME, compact({**claim, "renewed": time.time()})):
                time.sleep(SETTLE_S if removed else 0.0)
                if _is_ours(storage, claim):
                    return cls(storage, root, claim)
                continue
            held = _lease(storage)
            if held is None:  # given back an instant ago
                continue
            if time.time() - held["renewed"] < LEASE_S:
                if held["owner"] == claim["owner"]:
                    return None
                raise _in_use(root, held)
            if _lease(storage) == held:
                storage.remove(NAME)
            removed = True
        raise RecordError(f"cannot take the lease on {root}: {_TRIES} times it changed hands meanwhile. Start again.")

    def check(self) -> None:
        """Raise RecordError if another run took the directory."""
        if self._lost_to:
            raise RecordError(f"the lease on {self._root} ran out and {self._lost_to} took it; this run must stop")

    def end(self) -> None:
        """Stop renewing and give the directory back."""
        self._stop.set()
        self._thread.join(timeout=RENEW_S)
        if not self._lost_to and _is_ours(self._storage, self._claim):
            self._storage.remove(NAME)

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                if not _is_ours(self._storage, self._claim):
                    held = _lease(self._storage)
                    self._lost_to = str(held["owner"]) if held else "somebody who has left again"
                    return
                self._storage.put(NAME, compact({**self._claim, "renewed": time.time()}))
            except OSError as error:  # the store does not answer; there are LEASE_S / RENEW_S tries before it is lost
                _log.warning("cannot renew the lease on %s: %s", self._root, error)


def _lease(storage: Storage) -> dict[str, Any] | None:
    """The claim on the store, None when there is none."""
    try:
        held: dict[str, Any] = json.loads(storage.get(NAME))
    except RecordError:
        return None
    return held


def _is_ours(storage: Storage, claim: dict[str, Any]) -> bool:
    held = _lease(storage)
    return held is not None and held.get("token") == claim["token"]


def _claim(owner: str) -> dict[str, Any]:
    host = socket.gethostname()
    return {"owner": owner, "host": host, "pid": os.getpid(), "since": time.time(), "token": uuid.uuid4().hex}


def _flock(folder: Path, root: str, claim: dict[str, Any]) -> int:
    """Descriptor that holds the lock; -1 when another process of the same owner holds it."""
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held = _read_claim(descriptor)
        os.close(descriptor)
        if held["owner"] == claim["owner"]:
            return -1
        raise _in_use(root, held) from None
    os.ftruncate(descriptor, 0)
    disk.write_all(descriptor, compact(claim))
    return descriptor


def _read_claim(descriptor: int) -> dict[str, Any]:
    try:
        claim: dict[str, Any] = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:  # it took the lock an instant ago and has not written its name yet
        claim = {"owner": "a run that is just starting", "host": "?", "pid": "?", "since": time.time()}
    return claim


def _in_use(root: str, held: dict[str, Any]) -> RecordError:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(held["since"]))
    return RecordError(
        f"the run directory {root} is in use by {held['owner']} (host {held['host']}, process {held['pid']}, "
        f"since {since}). Wait for it, stop it, or give this run another trainer.experiment_name."
    )

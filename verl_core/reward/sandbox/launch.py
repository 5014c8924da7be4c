"""The launcher of one sandboxed program, run as a script. Invariant: what it starts cannot outlive it, and is limited
before its first instruction.

    python -I launch.py <limits, JSON> <file descriptor for the account> <program.py>

It gives up root, enters namespaces of its own (user, processes, network, mounts) as far as the kernel allows, puts an
empty file system of bounded size over the working folder, sets the limits, and runs the program. The account is two
lines of JSON: {"isolated": bool, "why": str} before the program starts, {"status": wait status, "cpu_s": float} after.
It imports the standard library only: it must start in milliseconds, and wherever the interpreter does.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_NOBODY = 65534
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 4096, 16384, 1 << 18, 2
_MIB = 1 << 20


def main(limits: dict[str, Any], account: int, program: str) -> None:
    """Start the program, wait for it, write the account, end like it."""
    os.set_inheritable(account, False)
    libc = ctypes.CDLL(None, use_errno=True)
    why = _isolate(libc, limits)
    _die_with_the_parent(libc)
    os.write(account, json.dumps({"isolated": not why, "why": why}).encode() + b"\n")
    child = os.fork()
    if child == 0:
        try:
            _die_with_the_parent(libc)
            _limit(limits)
            os.execv(sys.executable, [sys.executable, "-I", program])
        finally:
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    os.write(account, json.dumps({"status": status, "cpu_s": usage.ru_utime + usage.ru_stime}).encode())
    os._exit(0)


def _die_with_the_parent(libc: ctypes.CDLL) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _isolate(libc: ctypes.CDLL, limits: dict[str, Any]) -> str:
    """Enter namespaces of its own. Returns why that failed, empty when it did not."""
    if os.geteuid() == 0:  # the kernel exempts root from the limit on processes
        if why := _open_the_way(libc, [sys.prefix, sys.base_prefix]):
            return why
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # or the maps below belong to root
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEWUSER | _NEWPID | _NEWNET | _NEWIPC | _NEWNS):
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        return f"maps of the user namespace: {error}"
    return _cover(libc, os.getcwd(), limits["file_mb"])


def _open_the_way(libc: ctypes.CDLL, folders: list[str]) -> str:
    """Let `nobody` reach the interpreter where it lies in a folder that only root may enter: an empty folder is put
    over that one, in a mount namespace of our own, and the interpreter's into it. Returns why that failed."""
    closed = {folder: gate for folder in map(os.path.realpath, folders) if (gate := _closed_gate(folder))}
    if not closed:
        return ""
    if libc.unshare(_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        return f"the interpreter is in {min(closed.values())}, closed to others: {os.strerror(ctypes.get_errno())}"
    kept = {folder: os.open(folder, os.O_PATH) for folder in closed}
    covered = []
    for gate in sorted(set(closed.values())):
        if libc.mount(b"way", gate.encode(), b"tmpfs", 0, b"size=64k,mode=0755"):
            return f"tmpfs over {gate}: {os.strerror(ctypes.get_errno())}"
        covered.append(gate)
    for folder, descriptor in kept.items():
        os.makedirs(folder, mode=0o755, exist_ok=True)
        source = f"/proc/self/fd/{descriptor}".encode()
        if libc.mount(source, folder.encode(), None, _MS_BIND | _MS_REC, None):
            why = f"bind {folder}: {os.strerror(ctypes.get_errno())}"
            for gate in covered:
                libc.umount2(gate.encode(), _MNT_DETACH)
            return why
        os.close(descriptor)
    return ""


def _closed_gate(folder: str) -> str:
    """The first folder on the way that others may not enter; empty when there is none."""
    parts = folder.split("/")
    way = ["/".join(parts[:count]) or "/" for count in range(1, len(parts) + 1)]
    return next((place for place in way if not os.stat(place).st_mode & 0o001), "")


def _cover(libc: ctypes.CDLL, folder: str, megabytes: int) -> str:
    """An empty file system over the working folder: it holds what the program writes, and goes with it."""
    options = f"size={megabytes}m,mode=0777".encode()
    if libc.mount(b"sandbox", folder.encode(), b"tmpfs", 0, options):
        return f"tmpfs: {os.strerror(ctypes.get_errno())}"
    os.chdir(folder)
    return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _limit(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_mb"] * _MIB),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * _MIB),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

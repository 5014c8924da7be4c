"""Whether TransferQueue can be used here, and its settings. Invariant: nothing in this file imports it; that takes
seconds and 400 MB, and processes that do not touch the store must not pay for it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os

from verl_core.errors import StoreError


def require_transfer_queue() -> None:
    """Raise unless TransferQueue is installed. Does not import it.

    Raises:
        StoreError: with the install line and the way to run without it.
    """
    if importlib.util.find_spec("transfer_queue") is None:
        raise StoreError(
            "TransferQueue is not installed, and trainer.use_v1=true keeps trajectories in it. Install it with "
            "`pip install TransferQueue==0.1.11`, or set trainer.use_v1=false to hold each batch in memory "
            "(the legacy path)."
        )


def installed_version() -> str:
    """Version of TransferQueue here. Raises StoreError when there is none."""
    require_transfer_queue()
    return importlib.metadata.version("TransferQueue")


def prepare_environment(call_timeout_s: float) -> None:
    """Settings TransferQueue reads once, at import. What the user has set stays.

    Logging: errors only; what it warns of (keys that are not there, above all) we ask on purpose or raise ourselves.
    Threads: no more than cores. Its own time-outs: half of our deadline, so that a request lost on a dead connection is
    tried again before we give up.
    """
    half = str(max(1, math.floor(call_timeout_s / 2)))
    settings = {
        "TQ_LOGGING_LEVEL": "ERROR",
        "TQ_NUM_THREADS": str(min(8, os.cpu_count() or 1)),
        "TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT": half,
        "TQ_SIMPLE_STORAGE_MAX_ATTEMPTS": "2",
        "TQ_SIMPLE_STORAGE_PROBE_TIMEOUT": "1",
        "TQ_DATA_UPDATE_RESPONSE_TIMEOUT": half,
        "TQ_CLIENT_ZMQ_IO_THREADS": "1",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)

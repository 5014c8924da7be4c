"""Connecting to Ray. Invariant: one lock around every `ray.init` of the process, one namespace per run directory."""

from __future__ import annotations

import hashlib
import logging
import os
import threading

from verl_core.config.schema import RunConfig
from verl_core.errors import ResourceError

RAY_LOCK = threading.Lock()

# A background thread that touches Ray after the run ended must not start a second cluster.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def run_root(config: RunConfig) -> str:
    """Path or URL of the run directory."""
    return f"{config.trainer.default_local_dir.rstrip('/')}/{config.trainer.experiment_name}"


def namespace_of(config: RunConfig) -> str:
    """Where the run's named actors live: its name, and a digest of its directory, since two runs of one name in two
    directories are two runs. They never see each other's actors."""
    root = run_root(config)
    place = root if "://" in root else os.path.abspath(root)
    return f"verl-{config.trainer.experiment_name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def start_ray(config: RunConfig, address: str | None = None) -> None:
    """Connect this process to `address`, to RAY_ADDRESS, or to a private local Ray; nothing if it is connected already.

    Never picks up a cluster that merely happens to be recorded on the host (a stale record hangs for minutes).

    Raises:
        ResourceError: the cluster cannot be reached.
    """
    import ray

    with RAY_LOCK:
        if ray.is_initialized():
            return
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            ray.init(
                address=where,
                namespace=namespace_of(config),
                include_dashboard=False if where == "local" else None,
                log_to_driver=os.environ.get("VERL_RAY_LOGS", "0") == "1",
                logging_level=logging.WARNING,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ResourceError(
                f"cannot reach Ray at {where!r}: {error}. Check RAY_ADDRESS and RAY_AUTH_MODE, or unset both."
            ) from error

"""Environment of every test, set before anything heavy is imported, and the one Ray that they share."""

from __future__ import annotations

import os

_ENVIRONMENT = {
    "RAY_ADDRESS": "local",  # never attach to a Ray that happens to run on the machine
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a stray ray call must fail, not start a second Ray
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "HF_HUB_OFFLINE": "1",
    "FLYTE_LOCAL_CACHE_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
os.environ.update(_ENVIRONMENT)

import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import ray  # noqa: E402  the real one, before flytekit leaves its unloaded stand-in (see tasks/__init__.py)
from hypothesis import HealthCheck, settings  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# The two cores are busy with Ray: wall-clock deadlines per example would only measure the machine.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray for the whole session, in namespace `verl-test`; actors should ask for `num_cpus=0`."""

    # Workers import verl_core from the checkout, whatever directory pytest was started in.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        namespace="verl-test",
        object_store_memory=512 * 1024**2,
        log_to_driver=False,
    )
    yield
    ray.shutdown()

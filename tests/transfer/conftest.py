"""The stores under test: one real TransferQueue for the whole session, and the store of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verl_core.config.schema import BufferConfig
from verl_core.transfer.host import StoreHost
from verl_core.transfer.memory import MemoryStore
from verl_core.transfer.tq_store import TransferQueueStore


@pytest.fixture(scope="session")
def store_host(ray_cluster: None) -> Iterator[StoreHost]:
    """Two storage units: routing and scattering must work."""
    host = StoreHost.attach_or_launch(BufferConfig(num_storage_units=2), timeout_s=120, namespace="verl-test-transfer")
    yield host
    host.shutdown()


@pytest.fixture(scope="session")
def joined(store_host: StoreHost) -> Iterator[TransferQueueStore]:
    store = TransferQueueStore.join(store_host.endpoint, call_timeout_s=20)
    yield store
    store.close()


@pytest.fixture
def tq_store(joined: TransferQueueStore) -> TransferQueueStore:
    """The shared connection, emptied."""
    joined.reset()
    joined.quarantined_tags = 0
    return joined


@pytest.fixture(params=["memory", "transfer_queue"])
def store(request: pytest.FixtureRequest) -> MemoryStore | TransferQueueStore:
    """Each implementation in turn, empty."""
    if request.param == "memory":
        return MemoryStore()
    shared: TransferQueueStore = request.getfixturevalue("tq_store")
    return shared

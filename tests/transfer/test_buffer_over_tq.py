"""The replay buffer over the real TransferQueue, with an agent worker in another thread and connection."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from tests.transfer.build import failed_of, finished_of, prompt_of, reissue, same, tag_of
from tests.transfer.world import Book
from verl_core.config.schema import BufferConfig
from verl_core.trajectory import Prompt
from verl_core.transfer.flight import Group
from verl_core.transfer.group import GroupStatus
from verl_core.transfer.host import StoreHost
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.tq_store import TransferQueueStore


class Agent:
    """Runs each dispatch backwards; at first, group 1 fails and a row of group 2 is damaged."""

    def __init__(self, store: TransferQueueStore) -> None:
        self.store = store
        self.inbox: queue.Queue[list[Prompt]] = queue.Queue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        while prompts := self.inbox.get():
            self.store.write_tags([tag_of(prompt, GroupStatus.RUNNING) for prompt in prompts])
            for prompt in reversed(prompts):
                self.run(prompt)

    def run(self, prompt: Prompt) -> None:
        if (prompt.ordinal, prompt.attempt) == (1, 0):
            self.store.finish([failed_of(prompt)])
        elif (prompt.ordinal, prompt.attempt) == (2, 0):
            self.spoil(prompt)
        else:
            self.store.finish([finished_of(prompt, length=30)])

    def spoil(self, prompt: Prompt) -> None:
        """Commit a group whose rows are damaged between the commit and the ring."""
        ring, self.store._bell.ring = self.store._bell.ring, lambda uids: True  # type: ignore[method-assign]
        self.store.finish([finished_of(prompt, length=30)])
        self.store._bell.ring = ring  # type: ignore[method-assign]
        (blob,) = self.store._client.get_rows([prompt.uid])
        self.store._client.put_rows({prompt.uid: blob[:100] + bytes([blob[100] ^ 1]) + blob[101:]})
        ring([prompt.uid])


@pytest.fixture
def agent(tq_store: TransferQueueStore, store_host: StoreHost) -> Iterator[Agent]:
    worker = Agent(TransferQueueStore.join(store_host.endpoint, call_timeout_s=20, listen=False))
    yield worker
    worker.inbox.put([])
    worker.thread.join(20)
    worker.store.close()


def test_two_steps_with_a_failure_and_a_damaged_row(tq_store: TransferQueueStore, agent: Agent) -> None:
    book = Book()
    # No poll before the group is spoilt: the sampler must be woken by the bell.
    config = BufferConfig(poll_s=30.0, lease_s=100.0, stall_timeout_s=60.0)
    buffer = ReplayBuffer(tq_store, config, lambda prompts: agent.inbox.put(list(prompts)), book, reissue)
    for step, ordinals in ((1, range(6)), (2, range(6, 12))):
        buffer.submit([prompt_of(i, step=step) for i in ordinals])
        arrivals: list[Group] = []
        groups = buffer.sample(6, step, arrivals.extend)
        assert [group.prompt.ordinal for group in groups] == list(ordinals)
        assert len(arrivals) == 6
        for group in groups:
            wanted = finished_of(group.prompt, length=30).trajectories
            assert all(same(a, b) for a, b in zip(group.trajectories, wanted, strict=True))
        assert tq_store.tags() == {}
        buffer.clear(groups)
    assert {detail["reason"] for _, detail in book.of("failed")} == {"failed", "corrupt"}
    account = buffer.accounting()
    assert account.balanced
    assert (account.served, account.trained, account.reissued, account.quarantined) == (12, 12, 2, 1)
    assert tq_store._client.list_tags("train.rows") == {}  # every row was freed

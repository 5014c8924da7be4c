"""The trajectory store, measured on the real TransferQueue with two storage units, its own default.

`sample_latency_ms_*`: from the moment a group's last session has settled (its worker, another process, calls `finish`)
until `sample()` returns the group, while that many other groups are listed in the store.

`store_speedup_512`: put and get of 512 trajectories of U(512, 1536) tokens in 64 groups, against the plain layout (one
row per trajectory, one jagged tensor per field: ids, log-probs, mask) on the same servers, in turns. Both sides start
from the numpy columns of single trajectories and end there, with the same tokens. Ours includes checksum, proof that
the rows are readable, and the check against the manifest; tags (they carry the rows' places to the reader) and doorbell
are part of the latency, not of this.

    python -m benchmarks.bench_store
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verl_core.config.schema import BufferConfig
from verl_core.trajectory import Prompt, Segment, Trajectory
from verl_core.transfer.group import GroupStatus, GroupTag
from verl_core.transfer.host import StoreHost
from verl_core.transfer.interface import Finished
from verl_core.transfer.replay_buffer import ReplayBuffer
from verl_core.transfer.rows import commit_of, verified
from verl_core.transfer.tq_store import TransferQueueStore

SESSIONS, SHORTEST, LONGEST, PROMPT_TOKENS = 8, 512, 1536, 64
_NAMESPACE = "verl-bench-store"


def group_of(ordinal: int, generator: np.random.Generator) -> tuple[Prompt, Finished]:
    """A prompt and its settled group: 8 sessions of U(512, 1536) tokens."""
    uid = f"{ordinal:032x}"
    ids = generator.integers(0, 50_000, PROMPT_TOKENS).astype(np.int32)
    prompt = Prompt(uid, uid, 0, ordinal, ordinal, 1, SESSIONS, ids, "bench", None)
    tag = GroupTag(uid, uid, 0, ordinal, 1, GroupStatus.FINISHED, owner="bench")
    return prompt, Finished(tag, tuple(_trajectory(prompt, session, generator) for session in range(SESSIONS)))


def _trajectory(prompt: Prompt, session: int, generator: np.random.Generator) -> Trajectory:
    length = int(generator.integers(SHORTEST, LONGEST))
    return Trajectory(
        uid=prompt.uid,
        session=session,
        index=0,
        ordinal=prompt.ordinal,
        prompt_ids=prompt.token_ids,
        response_ids=generator.integers(0, 50_000, length).astype(np.int32),
        response_mask=np.ones(length, dtype=np.bool_),
        rollout_log_probs=generator.normal(size=length).astype(np.float32),
        segments=(Segment(0, length),),
        stop_reason="stop",
        data_source=prompt.data_source,
    )


@contextlib.contextmanager
def hosted_store(units: int = 2) -> Iterator[TransferQueueStore]:
    """A store of its own, in the Ray that is there or in a private one."""
    import ray

    private = not ray.is_initialized()
    if private:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, namespace=_NAMESPACE)
    host = StoreHost.attach_or_launch(BufferConfig(num_storage_units=units), timeout_s=300, namespace=_NAMESPACE)
    store = TransferQueueStore.join(host.endpoint, call_timeout_s=60)
    try:
        yield store
    finally:
        store.close()
        host.shutdown()
        if private:
            ray.shutdown()


class Worker:
    """An agent worker in a process of its own."""

    def __init__(self, endpoint: Any) -> None:
        self._store = TransferQueueStore.join(endpoint, call_timeout_s=60, listen=False)

    def finish(self, group: Finished, rest_s: float) -> float:
        """Commit the group after `rest_s`. Returns when the last session settled, in monotonic seconds."""
        time.sleep(rest_s)
        settled = time.monotonic()
        self._store.finish([group])
        return settled


class _NoLedger:
    def record(self, event: str, uids: Sequence[str], **detail: Any) -> None:
        """The journal is not what is measured here."""


def sample_latency(store: TransferQueueStore, listed: int, groups: int = 40) -> list[float]:
    """Milliseconds per group, with `listed` other groups in flight."""
    import ray

    store.reset()
    generator, rest = np.random.default_rng(0), random.Random(0)
    config = BufferConfig(call_timeout_s=60)
    buffer = ReplayBuffer(store, config, lambda prompts: None, _NoLedger(), lambda prompt: replace(prompt))
    filler = group_of(0, generator)[0]
    buffer.submit(
        [replace(filler, uid=f"{n:032x}", base_uid=f"{n:032x}", ordinal=n) for n in range(10**6, 10**6 + listed)]
    )
    worker = ray.remote(Worker).options(num_cpus=0).remote(store.endpoint)
    taken = []
    for ordinal in range(groups + 3):  # the first three warm both sides up
        prompt, finished = group_of(ordinal, generator)
        buffer.submit([prompt])
        settled = worker.finish.remote(finished, 0.05 + 0.1 * rest.random())
        (group,) = buffer.sample(1, step=1)
        returned = time.monotonic()
        taken.append(1000 * (returned - ray.get(settled)))
        buffer.clear([group])
    ray.kill(worker)
    if buffer.accounting().pending != listed:
        raise RuntimeError(f"the benchmark lost groups: {buffer.describe()}")
    return taken[3:]


def store_speedup(store: TransferQueueStore, rounds: int = 25) -> dict[str, float]:
    """Median milliseconds of each part of both layouts, and the ratio of their sums."""
    generator = np.random.default_rng(1)
    groups = [group_of(ordinal, generator)[1] for ordinal in range(512 // SESSIONS)]
    times: dict[str, list[float]] = {}
    store.reset()
    for _ in range(rounds + 2):  # the first two warm both sides up
        for name, milliseconds in {**_ours(store, groups), **_plain(store, groups)}.items():
            times.setdefault(name, []).append(milliseconds)
        store.reset()
    medians = {name: statistics.median(values[2:]) for name, values in times.items()}
    plain = sum(value for name, value in medians.items() if name.startswith("plain"))
    return {**medians, "speedup": plain / (sum(medians.values()) - plain)}


def _ours(store: TransferQueueStore, groups: Sequence[Finished]) -> dict[str, float]:
    """The store's own path of rows."""
    client, marks = store._client, [time.perf_counter()]
    commits = [commit_of(group) for group in groups]
    marks.append(time.perf_counter())
    places = client.put_rows({tag.uid: blob for tag, blob in commits})
    marks.append(time.perf_counter())
    uids = [tag.uid for tag, _ in commits]
    blobs = client.get_rows(uids, [places[uid] for uid in uids])  # the tags carry them to the reader
    marks.append(time.perf_counter())
    rows = [row for (tag, _), blob in zip(commits, blobs, strict=True) for row in verified(tag.manifest, blob)]
    marks.append(time.perf_counter())
    last = groups[-1].trajectories[-1]
    if len(rows) != 512 or rows[-1].rollout_log_probs.tobytes() != last.rollout_log_probs.tobytes():
        raise RuntimeError("the store gave back something else")
    parts = ("pack_ms", "put_ms", "get_ms", "unpack_ms")
    return {name: 1000 * (end - begin) for name, begin, end in zip(parts, marks, marks[1:], strict=False)}


def _plain(store: TransferQueueStore, groups: Sequence[Finished]) -> dict[str, float]:
    """TransferQueue's own put and get, as its key-value functions compose them."""
    rows = [row for group in groups for row in group.trajectories]
    client, loop = store._client._client, store._client._loop
    keys = [row.key for row in rows]

    async def put() -> None:
        meta = await client.async_kv_retrieve_meta(keys, "plain", create=True)
        meta.update_custom_meta([{"status": "success"} for _ in keys])
        await client.async_put(_jagged(rows), meta)

    async def get() -> list[tuple[Any, Any, Any]]:
        meta = await client.async_kv_retrieve_meta(keys, "plain", create=False)
        data = await client.async_get_data(meta)
        columns = [[part.numpy() for part in data[name].unbind()] for name in ("ids", "log_probs", "mask")]
        return list(zip(*columns, strict=True))

    started = time.perf_counter()
    loop.run("plain put", put, 60, lambda: "")
    stored = time.perf_counter()
    back = loop.run("plain get", get, 60, lambda: "")
    fetched = time.perf_counter()
    if len(back) != 512 or back[-1][1].tobytes() != rows[-1].rollout_log_probs.tobytes():
        raise RuntimeError("TransferQueue gave back something else")
    store._client.clear_partition("plain")
    return {"plain_put_ms": 1000 * (stored - started), "plain_get_ms": 1000 * (fetched - stored)}


def _jagged(rows: Sequence[Trajectory]) -> Any:
    import torch
    from tensordict import TensorDict

    columns = {
        "ids": [torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]).astype(np.int64)) for row in rows],
        "log_probs": [torch.from_numpy(row.rollout_log_probs) for row in rows],
        "mask": [torch.from_numpy(row.response_mask) for row in rows],
    }
    jagged = {name: torch.nested.as_nested_tensor(parts, layout=torch.jagged) for name, parts in columns.items()}
    return TensorDict(jagged, batch_size=len(rows))


def measure() -> dict[str, Any]:
    """Everything: the three values that have goals, by name, and what is behind them."""
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    with hosted_store() as store:
        speed = store_speedup(store)
        few, many = sample_latency(store, 100), sample_latency(store, 10_000)
    return {
        "sample_latency_ms_10k": round(statistics.median(many), 1),
        "sample_latency_ms_100": round(statistics.median(few), 1),
        "store_speedup_512": round(speed["speedup"], 2),
        "sample_latency_10k": _spread(many),
        "sample_latency_100": _spread(few),
        "store_512": {name: round(value, 2) for name, value in speed.items()},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    parts = statistics.quantiles(values, n=10)
    return {"min": round(min(values), 1), "p50": round(parts[4], 1), "p90": round(parts[8], 1), "n": len(values)}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))

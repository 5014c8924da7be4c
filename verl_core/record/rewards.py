"""rewards.parquet: output of the reward stage. Invariant: one row per trajectory, in order, quarantined ones with their
reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from verl_core.record.canonical import plain
from verl_core.record.parquet import table_bytes, table_from
from verl_core.record.rundir import Published, RunDir
from verl_core.trajectory import Reward

NAME = "rewards.parquet"

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("score", pa.float64()),
        ("components", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)


def write_rewards(rundir: RunDir, step: int, rewards: Sequence[Reward]) -> Published:
    """Publish the rewards of a step; `components` is kept as JSON."""
    return rundir.publish_bytes(f"{rundir.step_dir(step)}/{NAME}", pack_rewards(rewards))


def read_rewards(rundir: RunDir, step: int, sha256: str = "") -> list[Reward]:
    """Inverse of `write_rewards`. Raises RecordError: missing, damaged, or other bytes than `sha256` says."""
    path = f"{rundir.step_dir(step)}/{NAME}"
    return unpack_rewards(rundir.read(path, sha256), rundir.url(path))


def pack_rewards(rewards: Sequence[Reward]) -> bytes:
    """Parquet bytes of `rewards`."""
    columns = {
        "key": [reward.key for reward in rewards],
        "score": [float(reward.score) for reward in rewards],
        "components": [
            json.dumps(plain(reward.components), sort_keys=True) if reward.components else "{}" for reward in rewards
        ],
        "status": [reward.status for reward in rewards],
        "reason": [reward.reason for reward in rewards],
    }
    return table_bytes(pa.table(columns, schema=SCHEMA))


def unpack_rewards(data: bytes, name: str = NAME) -> list[Reward]:
    """Inverse of `pack_rewards`."""
    rows = table_from(data, SCHEMA, name).to_pylist()
    return [Reward(**{**row, "components": json.loads(row["components"])}) for row in rows]

"""Building datasets in verl's format. Invariant: equal settings give equal rows; a folder shows all files or none.

A prepared folder holds `train.parquet`, `val.parquet` (when val_size > 0) and `prepared.json` (settings and digest).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl_core.config.schema import PrepareConfig
from verl_core.config.wire import stable_hash
from verl_core.data.digit_sums import digit_sum_rows
from verl_core.data.gym_rows import gym_rows
from verl_core.data.plain_rows import plain_rows
from verl_core.data.products import product_rows
from verl_core.errors import DataError
from verl_core.models.folder import published

Record = dict[str, Any]
Splits = tuple[list[Record], list[Record]]

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct([("split", pa.string()), ("index", pa.int64()), ("entry", pa.string()), ("config", pa.string())]),
        ),
    ]
)
_ACCOUNT = "prepared.json"
_OWN_TASKS: dict[str, Callable[[PrepareConfig], Splits]] = {
    "one_digit_sums": digit_sum_rows,
    "calculator": product_rows,
}


@dataclass(frozen=True, slots=True)
class PreparedData:
    """What was built.

    Attributes:
        train, val: parquet files; val is None without validation rows.
        sha256: of the rows' content, so it does not depend on how parquet happens to lay them out.
    """

    train: str
    val: str | None
    sha256: str


def prepare(config: PrepareConfig, out_dir: str) -> PreparedData:
    """Build the dataset of `config` as the local folder `out_dir`.

    A folder that an earlier call built from the same settings and sources is used as it is; any other is replaced.

    Raises:
        DataError: neither task nor file, an unknown task or setting, or not enough rows.
    """
    if config.train_size < 1:
        raise DataError("data.prepare.train_size: at least one training row must be built")
    folder, recipe = Path(out_dir), _recipe(config)
    if (known := _built(folder, recipe)) is not None:
        return known
    train, val = rows_of(config)
    digest = stable_hash([train, val])
    with published(folder) as scratch:
        (scratch / "train.parquet").write_bytes(parquet_bytes(train))
        if val:
            (scratch / "val.parquet").write_bytes(parquet_bytes(val))
        (scratch / _ACCOUNT).write_text(json.dumps({"recipe": recipe, "sha256": digest}, indent=2, sort_keys=True))
    return _prepared(folder, digest)


def _recipe(config: PrepareConfig) -> dict[str, Any]:
    """Everything the rows depend on: the settings, and the content or version of what they are built from."""
    recipe = asdict(config)
    if config.file:
        path = Path(config.file)
        recipe["file_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    elif config.task not in _OWN_TASKS:
        recipe["reasoning_gym"] = importlib.metadata.version("reasoning-gym")
    return recipe


def _built(folder: Path, recipe: dict[str, Any]) -> PreparedData | None:
    account = folder / _ACCOUNT
    if not account.is_file():
        return None
    known = json.loads(account.read_text())
    return _prepared(folder, known["sha256"]) if known["recipe"] == json.loads(json.dumps(recipe)) else None


def _prepared(folder: Path, digest: str) -> PreparedData:
    val = folder / "val.parquet"
    return PreparedData(str(folder / "train.parquet"), str(val) if val.is_file() else None, digest)


def rows_of(config: PrepareConfig) -> Splits:
    """(training, validation) records of the settings, in verl's columns."""
    if config.task in _OWN_TASKS:
        return _OWN_TASKS[config.task](config)
    if config.task:
        return gym_rows(config)
    if config.file:
        return plain_rows(config)
    raise DataError("data.prepare: name a task (data.prepare.task) or a file (data.prepare.file)")


def parquet_bytes(rows: list[Record]) -> bytes:
    """The records as one parquet file, bit for bit the same for the same records and pyarrow version."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink)
    return bytes(sink.getvalue().to_pybytes())

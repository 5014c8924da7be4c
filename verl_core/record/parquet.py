"""Tables as parquet bytes. Invariant: a file of another schema is refused, never half read."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from verl_core.errors import RecordError


def table_bytes(table: pa.Table) -> bytes:
    """Parquet of `table`; no statistics and no dictionaries: these columns are read whole."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def table_from(data: bytes, schema: pa.Schema, name: str) -> pa.Table:
    """The table in `data`.

    Raises:
        RecordError: not parquet, or its columns are not those of `schema`.
    """
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    except pa.ArrowInvalid as error:
        raise RecordError(f"{name} is not a whole parquet file: {error}") from error
    if not table.schema.equals(schema):
        raise RecordError(
            f"{name} has other columns than this version writes: {table.schema.names}; expected {schema.names}"
        )
    return table

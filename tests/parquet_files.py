"""Parquet files for tests, as bytes, and what a loader hands out of them as tables."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS, ROWS_OF_A_GROUP = 100, 30  # four row groups, the last one shorter
LEAVES = ["x", "label", "name", "kind", "vector.list.element", "point.a", "point.b.list.element", "when"]


def table(number: int = 0, num_rows: int = NUM_ROWS) -> pa.Table:
    """Columns of all kinds; no two files have the same values."""
    first = np.arange(num_rows) + 1000 * number
    vectors = np.arange(num_rows * 4, dtype=np.float32) + number
    return pa.table(
        {
            "x": first.astype(np.float32),
            "label": first,
            "name": pa.array([f"row {value}" if value % 7 else None for value in first]),
            "kind": pa.array([f"kind {value % 3}" for value in first]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "point": pa.array([{"a": int(value), "b": [float(value)] * int(value % 3)} for value in first]),
            "when": pa.array(first * 1_000_000, pa.timestamp("us", tz="Europe/Berlin")),
        }
    )


def file_of(content: pa.Table, rows_of_a_group: int = ROWS_OF_A_GROUP, **options: Any) -> bytes:
    """A table as a file with all that a footer may hold."""
    out = io.BytesIO()
    extras = {"write_page_index": True, "sorting_columns": [pq.SortingColumn(1)], "store_decimal_as_integer": False}
    pq.write_table(content, out, row_group_size=rows_of_a_group, **{**extras, **options})
    return out.getvalue()


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """The rows one after the other, dictionaries decoded: those of row groups may differ."""
    return pa.concat_tables(tables).combine_chunks()


def tables_of(items: Iterable[Any], decode: str) -> list[pa.Table]:
    """What a user makes of the items."""
    readers = {
        "raw": lambda item: pq.read_table(io.BytesIO(item["data"])),
        "arrow": lambda item: pa.Table.from_batches([pa.ipc.open_stream(pa.py_buffer(item["data"])).read_next_batch()]),
        "batch": lambda item: pa.Table.from_batches([item["data"]]),
    }
    return [readers[decode](item) for item in items]


def spoiled(content: bytes, *row_groups: int) -> bytes:
    """A file whose pages in these row groups cannot be decoded."""
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    spoilt = bytearray(content)
    for number in row_groups:
        start = metadata.row_group(number).column(1).dictionary_page_offset
        spoilt[start : start + 60] = b"\xff" * 60
    return bytes(spoilt)

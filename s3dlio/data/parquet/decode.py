"""Row groups that are here become record batches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...errors import CorruptDataError, S3dlioError
from ...view import BytesView, empty
from .cut import Cut
from .index import pyarrow
from .spare import spare

__all__ = ["decoded", "to_ipc"]


def _table_of(cut: Cut) -> Any:
    view, cut.view = cut.view, empty(0)
    memory = memoryview(view)[: cut.layout.num_bytes]
    arrow = pyarrow()
    file = arrow.parquet.ParquetFile(arrow.BufferReader(arrow.py_buffer(memory)))
    table = file.read_row_group(0, use_threads=False)
    del file
    if cut.is_large:
        with suppress(BufferError):  # Arrow still refers to it
            memory.release()
            spare.give(view)
    return table


def decoded(cut: Cut) -> Any:
    """The row group as one pyarrow.RecordBatch. The view of the cut is gone afterwards: it is not held beside copies."""
    arrow = pyarrow()
    where = f"row group {cut.row_group} of {cut.index.uri}"
    try:
        table = _table_of(cut)
        batches = table.to_batches()
        if len(batches) != 1:
            batches = table.combine_chunks().to_batches()
    except (arrow.ArrowException, OSError) as exc:
        raise CorruptDataError(f"cannot decode {where}: {exc}") from exc
    if table.num_rows != (num_rows := cut.index.num_rows[cut.row_group]):
        raise CorruptDataError(f"cannot decode {where}: it has {table.num_rows} rows, and its footer says {num_rows}")
    if len(batches) != 1:
        raise S3dlioError(f"{where} does not fit into one record batch: write row groups with less text in a column")
    return batches[0]


def to_ipc(batch: Any, uri: str) -> BytesView:
    """A record batch as the bytes of an Arrow IPC stream: one copy, into memory of the right size."""
    arrow = pyarrow()
    counter = arrow.MockOutputStream()
    _write(counter, batch)
    view = empty(counter.size(), uri)
    _write(arrow.FixedSizeBufferWriter(arrow.py_buffer(view)), batch)
    return view


def _write(sink: Any, batch: Any) -> None:
    with pyarrow().ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)

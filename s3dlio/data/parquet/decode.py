"""Row groups that are here become record batches, and their memory that of the next ones."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import CorruptDataError, S3dlioError
from ...view import BytesView, empty, fresh
from .index import pyarrow

if TYPE_CHECKING:
    from .read import Cut

__all__ = ["Spare", "decoded", "spare", "to_ipc"]

SPARE_BYTES = 24 * 1024 * 1024  # kept of the memory of row groups that were decoded


class Spare:
    """Memory of row groups that were decoded, for the next ones: SPARE_BYTES of it at most."""

    def __init__(self) -> None:
        self._views: list[BytesView] = []  # several threads come to it: each step is one call

    def take(self, num_bytes: int, uri: str) -> BytesView:
        """Memory for a row group that is to be decoded; what was given last, where that is large enough, else fresh one."""
        try:
            view = self._views.pop()
        except IndexError:
            view = empty(0)
        if view.nbytes < num_bytes:
            view = fresh(num_bytes + num_bytes // 8)  # those to come may be a little larger; untouched memory costs nothing
        view.uri = uri
        return view

    def give(self, view: BytesView) -> None:
        """Keep the memory of a row group, to which nobody refers any more."""
        if sum(other.nbytes for other in self._views.copy()) + view.nbytes <= SPARE_BYTES:
            self._views.append(view)


spare = Spare()


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

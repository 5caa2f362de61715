"""Row groups on their way: which bytes of which file, where they land, and how they are decoded.

A row group lands as a Parquet file of its own: the wanted column chunks, neighbours in one request, go straight to their
places in one buffer, between the magic and a footer that was made before anything was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import objects, runtime
from ..config import Options
from ..errors import ChangedError, S3dlioError
from ..storage.base import ObjectInfo, Read, Store
from ..transfer import plan
from ..view import BytesView, empty
from .parquet_columns import Columns, SchemaOf, leaves_of, row_groups_of
from .parquet_footer import MAGIC
from .parquet_index import FileIndex, check_version, find, indexes, pyarrow, replaced

__all__ = ["Cut", "RowGroups", "decoded", "layout_of", "stream", "to_ipc"]

GAP_BYTES = 32 * 1024  # between two chunks: cheaper to read over than to ask twice

T = TypeVar("T")


class Layout(NamedTuple):
    """Where the bytes of a row group go: (start and end in the source, place), and the footer behind them."""

    spans: Sequence[tuple[int, int, int]]
    end: int
    footer: bytes


def layout_of(index: FileIndex, row_group: int, leaves: Sequence[int] | None) -> Layout:
    """How the `leaves` (None: all columns) of a row group become a file."""
    chunks = index.footer.row_groups[row_group].chunks
    chosen = chunks if leaves is None else [chunks[leaf] for leaf in leaves]
    spans, end = [], len(MAGIC)
    for start, stop in plan.coalesced(((chunk.start, chunk.start + chunk.length) for chunk in chosen), gap=GAP_BYTES):
        spans.append((start, stop, end))
        end += stop - start
    places = [
        next(place + chunk.start - start for start, stop, place in reversed(spans) if start <= chunk.start)
        for chunk in chosen
    ]
    change = None if leaves is None else SchemaOf(leaves, len(chunks))
    return Layout(spans, end, index.footer.cut(row_group, leaves, places, change))


class Cut:
    """A row group on its way: `view` becomes a whole file."""

    __slots__ = ("index", "layout", "missing", "row_group", "view")

    def __init__(self, index: FileIndex, row_group: int, leaves: Sequence[int] | None) -> None:
        self.index = index
        self.row_group = row_group
        self.layout = layout_of(index, row_group, leaves)
        self.view = empty(self.layout.end + len(self.layout.footer), index.uri)
        self.missing: list[int] = []  # a token per read that has not ended

    def pieces(self, chunk_bytes: int | None) -> Iterator[_Piece]:
        """Its reads, cut into pieces of `chunk_bytes` where that is told."""
        pieces = [
            _Piece(self, offset, length, place + offset - start)
            for start, end, place in self.layout.spans
            for offset, length in (plan.split(start, end, chunk_bytes) if chunk_bytes else [(start, end - start)])
        ]
        self.missing = list(range(len(pieces)))
        return iter(pieces)

    def complete(self) -> None:
        """Add what is not read."""
        memory = memoryview(self.view)
        memory[: len(MAGIC)] = MAGIC
        memory[self.layout.end :] = self.layout.footer


class _Piece(NamedTuple):
    """A read of a cut: bytes of the source, and their place."""

    cut: Cut
    start: int
    length: int
    place: int

    def read(self, store: Store) -> bool:
        """Read it, of the version that is known. Is the cut now complete?"""
        info = self.cut.index.info
        try:
            result = store.read(Read(info.key, self.start, self.length, self._into, info.etag))
        except ChangedError as exc:
            raise replaced(self.cut.index.uri) from exc
        check_version(self.cut.index.uri, info, result, self.length)
        return self.cut.missing.pop() == 0  # the tokens go down, and taking one is atomic: only the last to end gets 0

    def _into(self, _: ObjectInfo, length: int) -> memoryview:
        return memoryview(self.cut.view)[self.place : self.place + min(length, self.length)]


class RowGroups:
    """All row groups under a URI that columns and filters leave, in the order of names. Pickles with what it knows."""

    def __init__(self, uri: str, *, columns: Columns | None, footer_cap: int, filters: Any) -> None:
        arrow = pyarrow()
        files = find(uri)
        self.uri = uri
        expression = arrow.parquet.filters_to_expression(filters) if filters is not None else None
        self.files = indexes(objects.resolve(files[0][0])[0], files, footer_cap)
        self._leaves = [leaves_of(index, columns) for index in self.files]
        wanted = [row_groups_of(index, expression) for index in self.files]
        self._file_of = np.repeat(np.arange(len(wanted)), [len(numbers) for numbers in wanted])
        self._row_group_of = np.array([number for numbers in wanted for number in numbers], np.int64)

    def __len__(self) -> int:
        return len(self._file_of)

    def cut(self, number: int) -> Cut:
        """Begin with one of them: makes its buffer."""
        file = int(self._file_of[number])
        return Cut(self.files[file], int(self._row_group_of[number]), self._leaves[file])

    def num_rows(self, number: int) -> int:
        """Rows of one of them."""
        return self.files[int(self._file_of[number])].num_rows[int(self._row_group_of[number])]

    def store(self) -> Store:
        """The Store of all the files."""
        return objects.resolve(self.files[0].uri)[0]


class _Feed(Iterator[_Piece]):
    """Pieces, as long as fewer than `window` cuts are begun and not yet handed out; then it pauses, and goes on later."""

    def __init__(self, cuts: Iterator[Cut], window: int, chunk_bytes: int | None) -> None:
        self._cuts = cuts
        self._window = window
        self._chunk_bytes = chunk_bytes
        self._pieces: Iterator[_Piece] = iter(())
        self.order: list[Cut] = []  # begun and not handed out

    def __next__(self) -> _Piece:
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        if len(self.order) >= self._window:
            raise StopIteration
        cut = next(self._cuts)
        self.order.append(cut)
        self._pieces = cut.pieces(self._chunk_bytes)
        return next(self._pieces)


def stream(store: Store, cuts: Iterator[Cut], finish: Callable[[Cut], T], *, prefetch: int, options: Options) -> Iterator[T]:
    """`finish` of row groups, in the order of `cuts`, while further ones are read and finished in the I/O threads.

    At most `prefetch` of them are on their way, or here and not yet taken; `cuts` is advanced only as far. A failed one
    raises at its turn.
    """
    in_ranges = options.range_enabled and store.limits.parallel_ranges
    feed = _Feed(cuts, prefetch, options.chunk_bytes if in_ranges else None)

    def fetch(piece: _Piece) -> list[T]:
        return [_finished(piece.cut, finish)] if piece.read(store) else []

    here: dict[int, T | BaseException] = {}
    outcomes = runtime.each(fetch, feed, window=max(prefetch, options.range_concurrency))
    try:
        for piece, result in outcomes:
            if isinstance(result, BaseException):
                here.setdefault(id(piece.cut), result)
            elif result:
                here[id(piece.cut)] = result[0]
            del piece, result
            while feed.order and id(feed.order[0]) in here:
                yield _taken(here.pop(id(feed.order[0])))
                del feed.order[0]
    finally:
        outcomes.close()  # type: ignore[attr-defined]


def _finished(cut: Cut, finish: Callable[[Cut], T]) -> T:
    cut.complete()
    return finish(cut)


def _taken(result: T | BaseException) -> T:
    if isinstance(result, BaseException):
        raise result
    return result


def decoded(cut: Cut) -> Any:
    """The row group as one pyarrow.RecordBatch."""
    arrow = pyarrow()
    where = f"row group {cut.row_group} of {cut.index.uri}"
    try:
        file = arrow.parquet.ParquetFile(arrow.BufferReader(arrow.py_buffer(cut.view)))
        table = file.read_row_group(0, use_threads=False)
        batches = table.combine_chunks().to_batches()
    except (arrow.ArrowException, OSError) as exc:
        raise S3dlioError(f"cannot decode {where}: {exc}") from exc
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

"""A row group as a file of its own: which bytes of its source go where, and those of it that are here.

The wanted column chunks, neighbours in one request, go straight to their places in one buffer, between the magic and a
footer that is made before anything is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import ChangedError
from ...storage.base import ObjectInfo, Read, ReadResult
from ...transfer import plan
from ...view import empty
from .columns import SchemaOf
from .footer import MAGIC
from .index import FileIndex, check_version, replaced
from .spare import spare

__all__ = ["Cut", "Layout", "Piece", "layout_of"]

GAP_BYTES = 32 * 1024  # between two chunks: cheaper to read over than to ask twice
LARGE_BYTES = 2 * 1024 * 1024  # of such row groups, memory beside the result is saved


class Layout(NamedTuple):
    """Where the bytes of a row group go: (start and end in the source, place), and the footer behind them.

    `decoded_bytes` is about the memory that it takes when it is decoded.
    """

    spans: Sequence[tuple[int, int, int]]
    end: int
    footer: bytes
    decoded_bytes: int

    @property
    def num_bytes(self) -> int:
        """The length of the file."""
        return self.end + len(self.footer)


def layout_of(index: FileIndex, row_group: int, leaves: Sequence[int] | None) -> Layout:
    """How the `leaves` (None: all columns) of a row group become a file."""
    chosen = index.chunks(row_group, leaves)
    spans, end = [], len(MAGIC)
    for start, stop in plan.coalesced(((chunk.start, chunk.start + chunk.length) for chunk in chosen), gap=GAP_BYTES):
        spans.append((start, stop, end))
        end += stop - start
    places = [
        next(place + chunk.start - start for start, stop, place in reversed(spans) if start <= chunk.start)
        for chunk in chosen
    ]
    change = None if leaves is None else SchemaOf(leaves, len(index.leaves))
    decoded_bytes = sum(max(chunk.length, chunk.uncompressed) for chunk in chosen)
    return Layout(spans, end, index.cut(row_group, leaves, places, change), decoded_bytes)


class Cut:
    """A row group on its way: `view` becomes a whole file.

    One that `is_large` takes more memory while it is decoded. Its view is no pool memory, which would stay beside the
    result: it is that of one that was decoded before, and may be longer than the file.
    """

    __slots__ = ("arrival", "index", "is_decoded", "is_large", "is_over", "layout", "missing", "row_group", "view")

    def __init__(self, index: FileIndex, row_group: int, leaves: Sequence[int] | None, decode: str = "raw") -> None:
        self.index = index
        self.row_group = row_group
        self.layout = layout_of(index, row_group, leaves)
        self.is_decoded = decode != "raw"
        self.is_large = self.is_decoded and self.layout.decoded_bytes >= LARGE_BYTES
        self.view = (spare.take if self.is_large else empty)(self.layout.num_bytes, index.uri)
        self.is_over = False  # finished or failed
        self.arrival: Any = None  # told when one of its reads is heard of (`hear`), and when all are here (`land`)
        self.missing: list[int] = []  # a token per read that has not ended

    def pieces(self, chunk_bytes: int | None) -> Iterator[Piece]:
        """Its reads, cut into pieces of at least `chunk_bytes` where that is told."""
        pieces = [
            Piece(self, offset, length, place + offset - start)
            for start, end, place in self.layout.spans
            for offset, length in (plan.evenly(start, end, chunk_bytes) if chunk_bytes else [(start, end - start)])
        ]
        self.missing = list(range(len(pieces)))
        return iter(pieces)

    @property
    def num_bytes(self) -> int:
        """Bytes that are read for it."""
        return self.layout.end - len(MAGIC)

    def mean_bytes(self) -> int:
        """The mean length of its reads."""
        return self.num_bytes // len(self.layout.spans)

    def complete(self) -> None:
        """Add what is not read."""
        memory = memoryview(self.view)
        memory[: len(MAGIC)] = MAGIC
        memory[self.layout.end : self.layout.num_bytes] = self.layout.footer


class Piece(NamedTuple):
    """A read of a cut: bytes of the source, and their place."""

    cut: Cut
    start: int
    length: int
    place: int

    def request(self, tag: int = 0) -> Read:
        """The read, of the version that is known."""
        info = self.cut.index.info
        return Read(info.key, self.start, self.length, self._into, info.etag, tag)

    def landed(self, result: ReadResult | BaseException) -> bool:
        """Take note of the read's end. Is the cut now complete? Raises what went wrong."""
        uri = self.cut.index.uri
        if isinstance(result, ChangedError):
            raise replaced(uri) from result
        if isinstance(result, BaseException):
            raise result
        check_version(uri, self.cut.index.info, result, self.length)
        return self.cut.missing.pop() == 0  # the tokens go down, and taking one is atomic: only the last to end gets 0

    def _into(self, _: ObjectInfo, length: int) -> memoryview:
        if self.cut.arrival is not None:
            self.cut.arrival.hear()
        return memoryview(self.cut.view)[self.place : self.place + min(length, self.length)]

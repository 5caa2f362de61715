"""Reading pieces of many objects straight into their destinations: in parallel, coalesced, and verified on the way.

An extent is a run of bytes in an object, such as the raw bytes of a tensor. Short ones that are neighbours come in one
request and are copied out of it; long ones come in ranges that land where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import runtime
from ..config import Options
from ..errors import ChangedError, IncompleteReadError
from ..storage.base import ObjectInfo, Read, Store
from ..transfer import plan
from ..view import empty
from .blocks import BLOCK_BYTES, verify

__all__ = ["Extent", "SMALL_BYTES", "Want", "fetch"]

SMALL_BYTES = BLOCK_BYTES  # extents up to here are read whole, together with their neighbours
GAP_BYTES = 128 * 1024  # bytes read in vain rather than asking twice


class Extent(NamedTuple):
    """A run of bytes in the object `key`, with its checksums (`blocks.Checksums.digest`) where they are known."""

    key: str
    start: int
    length: int
    checksums: bytes | None = None
    etag: str | None = None  # of the version that is meant


class Want(NamedTuple):
    """Bytes [start, start + length) of an extent, and what is done with them.

    `into` is asked for their memory when the first request for them begins, `done` is called in the caller's thread when
    all of them are there and verified.
    """

    extent: Extent
    start: int
    length: int
    into: Callable[[], memoryview]
    done: Callable[[], None]


@dataclass(slots=True)
class _Open:
    """A want on its way."""

    want: Want
    left: int
    memory: memoryview | None = None

    def destination(self) -> memoryview:
        if self.memory is None:
            self.memory = self.want.into()
        return self.memory


@dataclass(slots=True)
class _Piece:
    """One request: bytes [start, start + length) of an object, and the parts of it that somebody wants."""

    key: str
    start: int
    length: int
    memory: memoryview
    etag: str | None = None
    parts: list[tuple[_Open, int, int]] = field(default_factory=list)  # of each want: [start, end) in its extent


def fetch(store: Store, wants: Iterable[Want], options: Options) -> None:
    """Fill all wants. The first failure raises, and nothing writes into their memory any more after that.

    At most `range_concurrency` requests of `chunk_bytes` are in flight, so that little more memory is needed than `into`
    gives. Raises IncompleteReadError when an object is shorter than its extents,
    CorruptDataError when a checksum differs, ChangedError when it is not the version that is meant.
    """
    ordered = sorted(wants, key=lambda want: (want.extent.key, want.extent.start, want.start))
    for piece, result in runtime.each(_reading(store), _pieces(ordered, options), window=options.range_concurrency):
        if isinstance(result, BaseException):
            raise result
        for opened, start, end in piece.parts:
            opened.left -= end - start
            if not opened.left:
                opened.memory = None
                opened.want.done()


def _pieces(wants: Sequence[Want], options: Options) -> Iterator[_Piece]:
    small: list[Want] = []
    for want in wants:
        if want.length == 0:
            want.into()
            want.done()
        elif want.extent.length > SMALL_BYTES:
            yield from _ranges(want, options.chunk_bytes)
        else:
            if small and not _together(small[0].extent, small[-1].extent, want.extent, options.chunk_bytes):
                yield _run(small)
                small = []
            small.append(want)
    if small:
        yield _run(small)


def _together(first: Extent, last: Extent, extent: Extent, most: int) -> bool:
    """Does `extent` come in one request with the run from `first` to `last`?"""
    return (
        (extent.key, extent.etag) == (first.key, first.etag)
        and extent.start <= last.start + last.length + GAP_BYTES
        and extent.start + extent.length - first.start <= most
    )


def _run(wants: Sequence[Want]) -> _Piece:
    """Short extents in one request."""
    start = wants[0].extent.start
    end = max(want.extent.start + want.extent.length for want in wants)
    piece = _Piece(wants[0].extent.key, start, end - start, memoryview(empty(end - start)), wants[0].extent.etag)
    for want in wants:
        piece.parts.append((_Open(want, want.length), want.start, want.start + want.length))
    return piece


def _ranges(want: Want, chunk: int) -> Iterator[_Piece]:
    """A long extent: ranges that land at their place, but for the blocks that reach over what is wanted."""
    opened = _Open(want, want.length)
    wanted_end = want.start + want.length
    start, end = want.start, wanted_end
    if want.extent.checksums is not None:
        start -= start % BLOCK_BYTES
        end = min(want.extent.length, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
        chunk = max(BLOCK_BYTES, chunk - chunk % BLOCK_BYTES)
    for offset, length in plan.split(start, end, chunk):
        first, last = max(offset, want.start), min(offset + length, wanted_end)
        into = opened.destination()[first - want.start : last - want.start]
        memory = into if into.nbytes == length else memoryview(empty(length))
        yield _Piece(want.extent.key, want.extent.start + offset, length, memory, want.extent.etag, [(opened, first, last)])


def _reading(store: Store) -> Callable[[_Piece], None]:
    def read(piece: _Piece) -> None:
        def into(_info: ObjectInfo, count: int) -> memoryview:
            return piece.memory[:count]

        info, data = store.read(Read(piece.key, piece.start, piece.length, into, piece.etag))
        if piece.etag is not None and info.etag != piece.etag:
            raise ChangedError(f"{store.root}{piece.key} was replaced while it was read: open it again")
        got = data.nbytes
        if got != piece.length:
            raise IncompleteReadError(
                f"{store.root}{piece.key} ends within the bytes {piece.start}-{piece.start + piece.length - 1} "
                f"({got} of {piece.length} are there): it was cut short"
            )
        for opened, start, end in piece.parts:
            _deliver(piece, opened, start, end, store.root)
        piece.memory = memoryview(b"")

    return read


def _deliver(piece: _Piece, opened: _Open, start: int, end: int, root: str) -> None:
    """Verify the whole blocks that came of a want's extent, and copy what did not land at its place."""
    extent = opened.want.extent
    first = max(0, piece.start - extent.start)
    last = min(extent.length, piece.start + piece.length - extent.start)
    here = piece.memory[extent.start + first - piece.start :][: last - first]
    if extent.checksums is not None:
        verify(here, extent.checksums, first // BLOCK_BYTES, f"{root}{extent.key}")
    if here.nbytes != end - start or extent.length <= SMALL_BYTES:
        begin = opened.want.start
        opened.destination()[start - begin : end - begin] = here[start - first : end - first]

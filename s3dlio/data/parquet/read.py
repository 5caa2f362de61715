"""Row groups on their way: which bytes of which file, where they land, and in which threads they are finished.

A row group lands as a Parquet file of its own: the wanted column chunks, neighbours in one request, go straight to their
places in one buffer, between the magic and a footer that was made before anything was asked for.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ... import objects, runtime
from ...config import Options
from ...errors import ChangedError, S3dlioError
from ...storage.base import ObjectInfo, Read, ReadResult, Store
from ...transfer import plan
from ...view import empty
from ..turns import InTurn
from .columns import Columns, SchemaOf, expression_of, leaves_of, row_groups_of
from .decode import spare
from .footer import MAGIC
from .index import FileIndex, check_version, find, indexes, pyarrow, replaced
from .room import Room

__all__ = ["Cut", "Layout", "RowGroups", "layout_of", "outcomes", "stream"]

GAP_BYTES = 32 * 1024  # between two chunks: cheaper to read over than to ask twice

SMALL_BYTES = 512 * 1024  # reads shorter than this are driven by the calling thread
SMALL_AT_ONCE = 4  # times as many of them: while it computes, or waits for a row group to be decoded, it sends none

LARGE_BYTES = 2 * 1024 * 1024  # of such row groups, memory beside the result is saved
ALONE_BYTES = 24 * 1024 * 1024  # such ones one thread decodes: it finds again what its allocator was given back

T = TypeVar("T")


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
    return Layout(spans, end, index.footer.cut(row_group, leaves, places, change), decoded_bytes)


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

    def pieces(self, chunk_bytes: int | None) -> Iterator[_Piece]:
        """Its reads, cut into pieces of at least `chunk_bytes` where that is told."""
        pieces = [
            _Piece(self, offset, length, place + offset - start)
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


class _Piece(NamedTuple):
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


class RowGroups:
    """All row groups under a URI that columns and filters leave, in the order of names. Pickles with what it knows."""

    def __init__(self, uri: str, *, columns: Columns | None, footer_cap: int, filters: Any) -> None:
        pyarrow()  # an error at once where it is not installed
        files = find(uri)
        self.uri = uri
        expression = expression_of(filters)
        self.files = indexes(objects.resolve(files[0][0])[0], files, footer_cap)
        self._leaves = [leaves_of(index, columns) for index in self.files]
        wanted = [row_groups_of(index, expression) for index in self.files]
        self._file_of = np.repeat(np.arange(len(wanted)), [len(numbers) for numbers in wanted])
        self._row_group_of = np.array([number for numbers in wanted for number in numbers], np.int64)

    def __len__(self) -> int:
        return len(self._file_of)

    def cut(self, number: int, decode: str) -> Cut:
        """Begin with one of them: makes its buffer, see Cut."""
        file = int(self._file_of[number])
        return Cut(self.files[file], int(self._row_group_of[number]), self._leaves[file], decode)

    def place_of(self, number: int) -> tuple[str, int]:
        """The file of one of them, and its number in it."""
        return self.files[int(self._file_of[number])].uri, int(self._row_group_of[number])

    def num_rows(self, number: int) -> int:
        """Rows of one of them."""
        return self.files[int(self._file_of[number])].num_rows[int(self._row_group_of[number])]

    def store(self) -> Store:
        """The Store of all the files."""
        return objects.resolve(self.files[0].uri)[0]


class _Feed(Iterator[_Piece]):
    """Pieces, as long as fewer than `window` cuts are begun and not yet handed out; then it pauses, and goes on later.

    Once another thread has put anything into `left`, it ends the whole: by GeneratorExit, as a generator that is closed.
    """

    def __init__(
        self, cuts: Iterator[Cut | S3dlioError], window: int, chunk_bytes: int | None, left: Collection[object]
    ) -> None:
        self.left = left
        self._cuts = cuts
        self._window = window
        self._chunk_bytes = chunk_bytes
        self._pieces: Iterator[_Piece] = iter(())
        self.order: list[Cut | S3dlioError] = []  # begun, or not to be begun, and not handed out
        self.is_over = False  # there are no further ones

    def __next__(self) -> _Piece:
        if self.left:
            raise GeneratorExit("left early")
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        while len(self.order) < self._window:
            cut = _begun(self._cuts)
            if cut is None:
                self.is_over = True
                break
            self.order.append(cut)
            if isinstance(cut, Cut):
                self._pieces = cut.pieces(self._chunk_bytes)
                return next(self._pieces)
        raise StopIteration


def _begun(cuts: Iterator[Cut | S3dlioError]) -> Cut | S3dlioError | None:
    """The next cut, or why there is none; None at the end."""
    try:
        return next(cuts, None)
    except S3dlioError as exc:
        return exc


_Ended: TypeAlias = Generator[tuple[Cut, Future[T]], None, None]


class _Requests(Iterator[Read]):
    """The reads of a feed, at most `window` at once; `pieces` are those on their way, by the tags of their reads."""

    def __init__(self, feed: _Feed, window: int) -> None:
        self._feed = feed
        self._window = window
        self._tags = itertools.count()
        self.pieces: dict[int, _Piece] = {}

    def __next__(self) -> Read:
        if len(self.pieces) >= self._window and not self._feed.left:
            raise StopIteration
        piece, tag = next(self._feed), next(self._tags)
        self.pieces[tag] = piece
        return piece.request(tag)


def stream(store: Store, cuts: Iterator[Cut], finish: Callable[[Cut], T], *, prefetch: int, options: Options) -> InTurn[T]:
    """`outcomes`, of which a failed one raises at its turn, and the next one comes after it."""
    return InTurn(outcomes(store, cuts, finish, prefetch=prefetch, options=options))


def outcomes(
    store: Store,
    cuts: Iterator[Cut],
    finish: Callable[[Cut], T],
    *,
    prefetch: int,
    options: Options,
    left: Collection[object] = (),
) -> Generator[T | Exception]:
    """`finish` of row groups, in the order of `cuts`, while further ones are read and decoded in other threads.

    What could not be had is its error, at its turn. At most `prefetch` of them are on their way, or here and not yet taken;
    `cuts` is advanced only as far. While one is decoded it takes its memory twice, so only as many are at once as `Room`
    allows, and of large ones one or two less are read ahead. Whoever puts something into `left` ends it from another thread,
    within a second. Raises S3dlioError in a forked child.
    """
    owner = os.getpid()
    first = _begun(cuts)
    if first is None:
        return
    in_ranges = options.range_enabled and store.limits.parallel_ranges
    if isinstance(first, Cut):
        prefetch = _places(first, prefetch)
    feed = _Feed(itertools.chain([first], cuts), prefetch, options.chunk_bytes if in_ranges else None, left)
    window, drive = max(prefetch, options.range_concurrency), _by_threads
    if isinstance(first, Cut) and first.mean_bytes() < SMALL_BYTES:
        window, drive = SMALL_AT_ONCE * window, _by_polling
    del first
    here: dict[int, Future[T]] = {}
    while not feed.is_over:  # driven again when all that the window had room for has failed to begin
        room = Room()
        finished = partial(_finished, finish=finish, room=room)
        ended = drive(store, feed, finished, window)
        try:
            for cut, future in ended:
                if not cut.is_over:  # of several reads, the first to fail ends it
                    cut.is_over = True
                    here[id(cut)] = future
                del cut, future
                while feed.order and (isinstance(feed.order[0], S3dlioError) or id(feed.order[0]) in here):
                    runtime.check_owner(owner)
                    yield _taken(feed.order[0], here)
                    del feed.order[0]
            while feed.order:  # nothing runs: these could not be begun
                yield _taken(feed.order[0], here)
                del feed.order[0]
        finally:
            room.is_closed = True
            ended.close()
            for future in here.values():
                future.cancel()


def _places(first: Cut, prefetch: int) -> int:
    """How many like `first` may be on their way, so that their memory and that of decoding are those of `prefetch`.

    One that is being decoded takes the place of two, and what Arrow's allocator keeps grows with large ones.
    """
    if not first.is_large:
        return prefetch
    num_spared = 2 if prefetch > 3 and first.layout.decoded_bytes >= ALONE_BYTES else 1
    return max(1, prefetch - num_spared)


def _taken(begun: Cut | S3dlioError, here: dict[int, Future[Any]]) -> Any:
    if isinstance(begun, S3dlioError):
        return begun
    future = here.pop(id(begun))
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error


def _by_threads(store: Store, feed: _Feed, finish: Callable[[Cut], T], window: int) -> _Ended[T]:
    """(cut, its future) as they come, being finished or failed."""

    def fetch(piece: _Piece) -> Future[T] | None:
        if piece.landed(_result_of(store, piece)):
            return _finishing(piece.cut, finish)
        return None

    for piece, result in runtime.each(fetch, feed, window=window, patience=runtime.PATIENCE, left=feed.left):
        if isinstance(result, BaseException):
            yield piece.cut, _failed(result)
        elif result is not None:
            yield piece.cut, result


def _by_polling(store: Store, feed: _Feed, finish: Callable[[Cut], T], window: int) -> _Ended[T]:
    """The same for small reads, which cost less when the calling thread drives them."""
    requests = _Requests(feed, window)
    # The store is allowed one more, so that it asks whenever it wakes up, and hears when all is left.
    for read, result in store.read_many(requests, window=window + 1):
        piece = requests.pieces.pop(read.tag)
        try:
            if piece.landed(result):
                yield piece.cut, _finishing(piece.cut, finish)
        except Exception as exc:
            yield piece.cut, _failed(exc)


def _result_of(store: Store, piece: _Piece) -> ReadResult | BaseException:
    try:
        return store.read(piece.request())
    except ChangedError as exc:
        return exc


def _finishing(cut: Cut, finish: Callable[[Cut], T]) -> Future[T]:
    """A raw row group takes a moment only, any other one a thread that decodes."""
    if cut.arrival is not None:
        cut.arrival.land()
    if cut.is_decoded:
        threads = runtime.decoders if cut.layout.decoded_bytes < ALONE_BYTES else runtime.lone_decoder
        return threads.submit(partial(finish, cut))
    future: Future[T] = Future()
    future.set_result(finish(cut))
    return future


def _failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _finished(cut: Cut, *, finish: Callable[[Cut], T], room: Room) -> T:
    cut.complete()
    with room.taken(cut.layout.decoded_bytes):
        result = finish(cut)
        cut.view = empty(0)  # what was decoded is not kept until its turn
    return result

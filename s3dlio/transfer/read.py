"""Whole objects and ranges, in parallel, straight into one buffer, without ever asking for the size first.

The first request asks for the bytes up to the threshold. Its answer tells size and version; if more is left, further
ranges of that version follow in parallel, and each must tell the same version and size again. An object that is
replaced meanwhile is read anew, whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from .. import runtime
from ..config import Options
from ..errors import ChangedError, IncompleteReadError
from ..storage.base import ObjectInfo, Outcome, Read, ReadResult, Store, clamp
from ..view import BytesView, empty
from . import plan

__all__ = ["Arrival", "arrivals", "fetch", "fetch_many", "fetch_range", "fill"]

ATTEMPTS_ON_CHANGE = 3


class _Landing:
    """The destination of [start, start + length) of an object: allocated as a whole when the object's size is known."""

    __slots__ = ("length", "start", "uri", "view")

    def __init__(self, uri: str, start: int, length: int | None) -> None:
        self.uri = uri
        self.start = start
        self.length = length
        self.view: BytesView | None = None

    def __call__(self, info: ObjectInfo, length: int) -> memoryview:
        self.view = empty(clamp(self.start, self.length, info.size), self.uri)
        return memoryview(self.view)[:length]

    def landed(self) -> BytesView:
        assert self.view is not None, "a read that ends well has asked for its destination"
        return self.view


class Arrival(_Landing):
    """A whole object on its way that knows, by `clock`, when it was asked for, first heard of, and here; None: never."""

    __slots__ = ("asked_at", "clock", "ended_at", "heard_at")

    def __init__(self, uri: str, clock: Callable[[], float]) -> None:
        self.uri = uri  # all spelled out here and below: it is done for every object of an epoch
        self.start = 0
        self.length = None
        self.view = None
        self.clock = clock
        self.asked_at = self.ended_at = clock()
        self.heard_at: float | None = None

    def __call__(self, info: ObjectInfo, length: int) -> memoryview:
        self.heard_at = self.clock()
        view = self.view = empty(info.size, self.uri)
        return memoryview(view)[:length]


def fetch(store: Store, key: str, options: Options, version: str | None = None) -> BytesView:
    """The whole object."""
    return fetch_range(store, key, 0, None, options, version)


def fetch_range(
    store: Store, key: str, start: int, length: int | None, options: Options, version: str | None = None
) -> BytesView:
    """Bytes [start, start + length), as far as the object goes; a long range comes in parallel.

    An object that is replaced meanwhile is read again.
    """
    for attempt in range(1, ATTEMPTS_ON_CHANGE + 1):
        try:
            first = _first_read(store, key, options, start=start, length=length, version=version)
            return _completed(store, first, store.read(first), options)
        except ChangedError:
            if attempt == ATTEMPTS_ON_CHANGE:
                raise
    raise AssertionError("the last attempt returns or raises")


def _first_read(
    store: Store,
    key: str,
    options: Options,
    *,
    start: int = 0,
    length: int | None = None,
    tag: int = 0,
    version: str | None = None,
    into: _Landing | None = None,
) -> Read:
    """The request that tells size and version: of the range, or of its beginning where ranges come in parallel."""
    landing = into or _Landing(store.root + key, start, length)
    if _in_ranges(store, options):
        length = options.range_threshold_bytes if length is None else min(length, options.range_threshold_bytes)
    return Read(key, start, length, landing, None, tag, version, not options.skip_head)


def _in_ranges(store: Store, options: Options) -> bool:
    return options.range_enabled and store.limits.parallel_ranges


def _completed(store: Store, first: Read, result: ReadResult, options: Options) -> BytesView:
    assert isinstance(first.into, _Landing)
    view, done, etag = first.into.landed(), result.data.nbytes, result.info.etag
    if done == view.nbytes:
        return view
    if etag is None or etag.startswith("W/"):  # pieces of what has no sure version could be of two versions: all in one
        store.read(first._replace(length=first.into.length))
        return first.into.landed()
    rest = memoryview(view)[done:]
    fill(store, result.info, rest, first.start + done, options, first.version, patience=runtime.PATIENCE)
    return view


def fill(
    store: Store,
    info: ObjectInfo,
    into: memoryview,
    start: int,
    options: Options,
    version: str | None = None,
    *,
    patience: float | None = None,
) -> None:
    """Fill `into` from the object's byte `start` on, in parallel ranges of the version that `info` tells.

    `patience` is that of `runtime.each`.
    """
    chunk = options.chunk_bytes if _in_ranges(store, options) else start + into.nbytes
    pieces = plan.split(start, start + into.nbytes, chunk)
    reads = (
        Read(info.key, offset, length, _slice(into, offset - start, length), info.etag, offset, version)
        for offset, length in pieces
    )
    # Bodies of megabytes overlap better in threads than in one thread that polls.
    for read, result in runtime.each(store.read, reads, window=options.range_concurrency, patience=patience):
        _check_part(store.root, read, info, result)


def _slice(into: memoryview, offset: int, length: int) -> Callable[[ObjectInfo, int], memoryview]:
    return lambda _info, count: into[offset : offset + min(length, count)]


def _check_part(root: str, read: Read, info: ObjectInfo, result: ReadResult | BaseException) -> None:
    if isinstance(result, BaseException):
        raise result
    if (result.info.etag, result.info.size) != (info.etag, info.size):
        raise ChangedError(f"{root}{read.key} was replaced while it was read: read it again")
    if result.data.nbytes != read.length:
        last = read.start + (read.length or 0) - 1
        raise IncompleteReadError(
            f"{root}{read.key}: bytes {read.start}-{last} came incomplete ({result.data.nbytes} of {read.length})"
        )


def fetch_many(places: Sequence[tuple[Store, str]], *, window: int, options: Options) -> list[BytesView]:
    """The whole objects, in the order of `places`; duplicates are read as often as they are named.

    The first failure ends it: what was not begun is not asked for any more.
    """
    views: list[BytesView | None] = [None] * len(places)
    for read, store, result in _first_results(places, window, options):
        views[read.tag] = _settled(store, read, result, options)
    missing = [places[tag][1] for tag, view in enumerate(views) if view is None]
    assert not missing, f"a store gave no outcome for {missing[:3]}"
    return views  # type: ignore[return-value]


class _Feed(Iterator[Read]):
    """Reads, as long as fewer than `window` of them are begun and not yet handed out; then it pauses, and goes on later.

    Once another thread has put anything into `left`, it ends the whole: by GeneratorExit, as a generator that is closed.
    """

    def __init__(self, reads: Iterator[Read], window: int, left: Collection[object] = ()) -> None:
        self._reads = reads
        self._window = window
        self._left = left
        self._num_begun = 0
        self.num_handed_out = 0

    def __next__(self) -> Read:
        if self._left:
            raise GeneratorExit("left early")
        if self._num_begun - self.num_handed_out >= self._window:
            raise StopIteration
        read = next(self._reads)
        self._num_begun += 1
        return read


def arrivals(
    store: Store,
    keys: Iterable[str],
    *,
    window: int,
    options: Options,
    in_order: bool,
    clock: Callable[[], float] = time.perf_counter,
    left: Collection[object] = (),
) -> Iterator[tuple[Arrival, BytesView | Exception]]:
    """The whole objects, or what went wrong with each, in the order of `keys` or as they come.

    At most `window` objects are in flight, or here and not yet handed out; `keys` is advanced only as far. Whoever puts
    something into `left` ends it from another thread: the one that waits here looks at least once a second.
    """
    reads = (
        _first_read(store, key, options, tag=tag, into=Arrival(store.root + key, clock)) for tag, key in enumerate(keys)
    )
    feed = _Feed(reads, window, left)
    here: dict[int, tuple[Read, ReadResult | BaseException]] = {}
    # The feed keeps to the window. The store is allowed one more, so that it asks the feed whenever it wakes up.
    for read, result in store.read_many(feed, window=window + 1):
        assert isinstance(read.into, Arrival)
        read.into.ended_at = clock()
        if in_order and read.tag != feed.num_handed_out:
            here[read.tag] = read, result
            continue
        while True:
            feed.num_handed_out += 1
            assert isinstance(read.into, Arrival)
            yield read.into, _outcome(store, read, result, options)
            if feed.num_handed_out not in here:  # as always where the order is that of arrival
                break
            read, result = here.pop(feed.num_handed_out)


def _outcome(store: Store, read: Read, result: ReadResult | BaseException, options: Options) -> BytesView | Exception:
    try:
        return _settled(store, read, result, options)
    except Exception as exc:
        return exc


def _first_results(
    places: Sequence[tuple[Store, str]], window: int, options: Options
) -> Iterator[tuple[Read, Store, ReadResult | BaseException]]:
    by_store: dict[int, tuple[Store, list[int]]] = {}
    for tag, (store, _) in enumerate(places):
        by_store.setdefault(id(store), (store, []))[1].append(tag)
    for store, tags in by_store.values():
        reads = (_first_read(store, places[tag][1], options, tag=tag) for tag in tags)
        outcomes: Iterator[Outcome] = store.read_many(reads, window=window)
        for read, result in outcomes:
            yield read, store, result


def _settled(store: Store, read: Read, result: ReadResult | BaseException, options: Options) -> BytesView:
    if isinstance(result, ChangedError):
        return fetch(store, read.key, options)
    if isinstance(result, BaseException):
        raise result
    try:
        return _completed(store, read, result, options)
    except ChangedError:
        return fetch(store, read.key, options)

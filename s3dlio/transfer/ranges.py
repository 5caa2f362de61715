"""Many ranges of one object, each in one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..config import Options
from ..errors import ChangedError
from ..storage.base import ObjectInfo, Read, Store
from ..view import BytesView, empty
from . import read as transfer

__all__ = ["fetch_ranges"]

Range = tuple[int, int]


def fetch_ranges(
    store: Store, key: str, ranges: Sequence[Range], *, window: int, options: Options, match: str | None = None
) -> list[BytesView]:
    """The bytes of every (offset, length), in the order of `ranges`; what lies past the object's end is left out.

    At most `window` requests are in flight. The first failure ends it. Where `match`, an etag, is told, all are of that
    version, else each is of the version that is there when it is read. Raises ChangedError.
    """
    views = [empty(0)] * len(ranges)
    for read, result in store.read_many(_reads(key, ranges, views, store.root + key, match), window=window):
        if isinstance(result, ChangedError) and match is None:
            views[read.tag] = transfer.fetch_range(store, key, read.start, read.length, options)
        elif isinstance(result, BaseException):
            raise result
    return views


def _reads(key: str, ranges: Iterable[Range], views: list[BytesView], uri: str, match: str | None) -> Iterator[Read]:
    for tag, (offset, length) in enumerate(ranges):
        yield Read(key, offset, length, _landing(views, tag, uri), match, tag)


def _landing(views: list[BytesView], tag: int, uri: str) -> Callable[[ObjectInfo, int], memoryview]:
    def into(_: ObjectInfo, count: int) -> memoryview:
        views[tag] = empty(count, uri)
        return memoryview(views[tag])

    return into

"""Who waits for the bytes: threads, or the calling one, which polls; and in which threads row groups are finished."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ... import runtime
from ...errors import ChangedError
from ...storage.base import ReadResult, Store
from .cut import Cut, Piece
from .feed import Feed, Requests

__all__ = ["ALONE_BYTES", "Ended", "by_polling", "by_threads"]

ALONE_BYTES = 24 * 1024 * 1024  # such ones one thread decodes: it finds again what its allocator was given back

T = TypeVar("T")
Ended: TypeAlias = Generator[tuple[Cut, Future[T]], None, None]


def by_threads(store: Store, feed: Feed, finish: Callable[[Cut], T], window: int) -> Ended[T]:
    """(cut, its future) as they come, being finished or failed."""

    def fetch(piece: Piece) -> Future[T] | None:
        if piece.landed(_result_of(store, piece)):
            return _finishing(piece.cut, finish)
        return None

    for piece, result in runtime.each(fetch, feed, window=window, patience=runtime.PATIENCE, left=feed.left):
        if isinstance(result, BaseException):
            yield piece.cut, _failed(result)
        elif result is not None:
            yield piece.cut, result


def by_polling(store: Store, feed: Feed, finish: Callable[[Cut], T], window: int) -> Ended[T]:
    """The same for small reads, which cost less when the calling thread drives them."""
    requests = Requests(feed, window)
    # The store is allowed one more, so that it asks whenever it wakes up, and hears when all is left.
    for read, result in store.read_many(requests, window=window + 1):
        piece = requests.pieces.pop(read.tag)
        try:
            if piece.landed(result):
                yield piece.cut, _finishing(piece.cut, finish)
        except Exception as exc:
            yield piece.cut, _failed(exc)


def _result_of(store: Store, piece: Piece) -> ReadResult | BaseException:
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
